# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the safetensors files of a folder, by their headers.

A header is JSON behind eight bytes with its length, and says of each tensor where its bytes lie in
the rest of the file (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MOST_BYTES = 64 << 20
"""Of all headers of a folder, and of an index. A model of 671 billion parameters has 12 MiB."""
INDEX = "model.safetensors.index.json"
OF_MISTRAL = "consolidated*.safetensors"
"""vLLM takes these in place of the others, with names of their own."""
MOST_SHOWN = 200


class _BrokenError(ValueError):
    """What is wrong with a file, to be read behind its name."""


def problems_of(name: str) -> tuple[str, ...]:
    """A sentence for each file of a model's folder that vLLM would read and cannot.

    None for a folder without files of weights: a check may come before they are fetched.
    """
    folder = Path(name)
    try:
        sizes = {one.name: one.stat().st_size for one in folder.glob("*.safetensors")}
        if not sizes or any(folder.glob(OF_MISTRAL)):
            return ()
        return tuple(_problems(folder, sizes, _listed(folder)))
    except (OSError, ValueError):
        return ()


def _problems(folder: Path, sizes: dict[str, int], listed: frozenset[str]) -> Iterator[str]:
    left = MOST_BYTES
    for file in sorted(sizes):
        if listed and file not in listed:
            continue
        try:
            length = _check(folder / file, sizes[file], left)
        except _BrokenError as error:
            yield f"{folder / file} {error}"
            continue
        except OSError as error:
            yield f"{folder / file} cannot be read: {error.strerror or error}"
            continue
        left -= length
        if left < 0:
            return
    for file in sorted(listed - sizes.keys()):
        yield f"there is no file {folder / _shown(file)}"


def _listed(folder: Path) -> frozenset[str]:
    """The files that the index names, which vLLM reads alone; none without an index."""
    path = folder / INDEX
    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:
            return frozenset()
        found = json.loads(path.read_text(encoding="utf-8"))["weight_map"].values()
        return frozenset(str(one) for one in found)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return frozenset()


def _check(path: Path, size: int, most: int) -> int:
    """Bytes of the header of a file that is whole; not read where they are more than ``most``."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise _BrokenError(f"has {size} bytes and is cut short: its header has {length}")
        if length > most:
            return length
        text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise _BrokenError("is no safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise _BrokenError("is no safetensors file: its header is no JSON object")
    stored = size - 8 - length
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        place: Any = entry.get("data_offsets") if isinstance(entry, dict) else None
        if not (isinstance(place, list) and len(place) == 2 and type(place[1]) is int):
            raise _BrokenError(f"has a tensor {_shown(name)} without a place")
        if place[1] > stored:
            raise _BrokenError(
                f"is cut short: {_shown(name)} ends at byte {_shown(place[1])} of its data, which "
                f"has {stored}"
            )
    return length


def _shown(value: object) -> str:
    """A name of a file's, short and without what a terminal would take for a command."""
    text = str(value).encode("unicode_escape").decode("ascii")
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
