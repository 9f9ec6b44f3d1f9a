# SPDX-License-Identifier: Apache-2.0
"""Names and shapes of the tensors in a folder's safetensors files, and what is wrong with these.

Headers alone are read. A header is JSON behind eight bytes with its length, and says of each tensor
where its bytes lie in the rest of the file
(https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["TensorFiles", "holds_weights", "is_of_predictor", "tensors_of"]

MOST_BYTES = 64 << 20
"""Of all headers of a folder, and of an index. A model of 671 billion parameters has 12 MiB."""
MOST_SHOWN = 200
"""Characters of a name that a message repeats."""
INDEX = "model.safetensors.index.json"
OF_MISTRAL = "consolidated*.safetensors"
"""vLLM takes these in place of the others, with names of their own."""
_LAYER = re.compile(r"(?:^|\.)(?:layers|h|blocks)\.(\d{1,6})\.")
_OF_PREDICTOR = re.compile(r"(?:^|\.)mtp(?:_\w+)?\.")


@dataclass(frozen=True)
class TensorFiles:
    """``shapes``: of each tensor by its name. ``problems``: a sentence for each broken file;
    ``missing``: for each that the index alone has."""

    shapes: Mapping[str, tuple[int, ...]]
    problems: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()

    @functools.cached_property
    def layers(self) -> frozenset[int]:
        """Numbers of the layers that have a tensor."""
        found = {int(match[1]) for name in self.shapes for match in _LAYER.finditer(name)}
        return frozenset(found | {0} if any("midlayer." in name for name in self.shapes) else found)

    @property
    def has_fc(self) -> bool:
        """Whether there is a matrix that joins what a head is given."""
        return any(name.removeprefix("model.").startswith("fc.") for name in self.shapes)


def is_of_predictor(name: str, layers: int | None) -> bool:
    """Whether a tensor is of multi-token prediction layers, behind ``layers`` of the model."""
    if _OF_PREDICTOR.search(name):
        return True
    return layers is not None and any(int(one[1]) >= layers for one in _LAYER.finditer(name))


def tensors_of(name: str) -> TensorFiles | None:
    """The tensors of a model's folder; None where there is no file to read, or too much."""
    folder = Path(name)
    try:
        if any(folder.glob(OF_MISTRAL)):
            return None
        files = sorted((*folder.glob("*.safetensors"), *folder.glob(INDEX)))
        state = tuple((one.name, one.stat().st_size, one.stat().st_mtime_ns) for one in files)
    except (OSError, ValueError):
        return None
    return _read(folder, state)


def holds_weights(name: str) -> bool:
    """Whether a folder has a file of weights that vLLM reads; True for what is no folder."""
    folder = Path(name)
    try:
        return not folder.is_dir() or any(
            one.suffix in (".safetensors", ".bin", ".pt") for one in folder.iterdir()
        )
    except (OSError, ValueError):
        return True


@functools.lru_cache(maxsize=8)
def _read(folder: Path, state: tuple[tuple[str, int, int], ...]) -> TensorFiles | None:
    sizes = {name: size for name, size, _ in state if name != INDEX}
    if not sizes:
        return None
    shapes: dict[str, tuple[int, ...]] = {}
    problems: list[str] = []
    listed = _listed(folder)
    left = MOST_BYTES
    for file, size in sizes.items():
        if listed and file not in listed:
            continue
        try:
            header, length = _header(folder / file, size, left)
            left -= length
            if left < 0:
                return None
            shapes.update(_shapes(header, size - 8 - length))
        except _BrokenError as error:
            problems.append(f"{folder / file} {error}")
        except OSError as error:
            problems.append(f"{folder / file} cannot be read: {error.strerror or error}")
    missing = [f"there is no file {folder / _shown(one)}" for one in sorted(listed - sizes.keys())]
    return TensorFiles(shapes, tuple(problems), tuple(missing))


class _BrokenError(ValueError):
    """What is wrong with a file, to be read behind its name."""


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


def _header(path: Path, size: int, most: int) -> tuple[Mapping[str, Any], int]:
    """The header of a file, and its length; empty where it is longer than ``most``."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise _BrokenError(f"has {size} bytes and is cut short: its header has {length}")
        if length > most:
            return {}, length
        text = file.read(length)
    try:
        header = json.loads(text)
    except (ValueError, RecursionError):
        raise _BrokenError("is no safetensors file: its header is not JSON") from None
    if not isinstance(header, dict):
        raise _BrokenError("is no safetensors file: its header is no JSON object")
    return header, length


def _shapes(header: Mapping[str, Any], stored: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of tensors, of which a file has ``stored`` bytes."""
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        known: dict[str, Any] = entry if isinstance(entry, dict) else {}
        shape: Any = known.get("shape")
        place: Any = known.get("data_offsets")
        if not (_are_counts(shape) and _are_counts(place) and len(place) == 2):
            raise _BrokenError(f"has a tensor {_shown(name)} without a shape or a place")
        if place[1] > stored:
            raise _BrokenError(
                f"is cut short: {_shown(name)} ends at byte {_shown(place[1])} of its data, which "
                f"has {stored}"
            )
        yield name, tuple(shape)


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(one) is int and one >= 0 for one in value)


def _shown(value: object) -> str:
    """A name of a file's, short and without what a terminal would take for a command."""
    text = str(value).encode("unicode_escape").decode("ascii")
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
