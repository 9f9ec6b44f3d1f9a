# SPDX-License-Identifier: Apache-2.0
"""Files of a model's folder: JSON objects, ModelSlim's description of weights, and weights."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DESCRIPTION = "quant_model_description.json"
"""The file's name (``MODELSLIM_CONFIG_FILENAME`` of vllm-ascend)."""
INDEX = "model.safetensors.index.json"
OF_MISTRAL = "consolidated*.safetensors"
"""vLLM takes these in place of the others, with names of their own."""
MOST_BYTES = 256 << 20
"""Of a JSON file. The index of a model of 671 billion parameters has 8 MiB."""
INT8_CACHE = "C8"
_SCALE_OF_KEYS = re.compile(r"\.([0-9]{1,9})\.(?:.*\.)?k_proj\.kv_cache_scale$")
_SCALE_OF_LATENTS = ".fa_k.scale"
_FLOAT8 = re.compile(r"FP8|FP4")
"""In the kinds of weights whose operators only A5 has (``MXFP8`` and others)."""
MOST_SHOWN = 200


class ConfigFileError(ValueError):
    """A file that cannot be read, or holds what no model can have."""


def read_object(path: Path, most_bytes: int = MOST_BYTES) -> dict[str, Any] | None:
    """The JSON object of a file; None where there is no such file, or no file can have its name.

    Raises ConfigFileError when it cannot be read, or has more than ``most_bytes``.
    """
    # Of a name that is too long, pathlib raises an error.
    if not os.path.isfile(path):
        return None
    try:
        size = path.stat().st_size
        if size > most_bytes:
            raise ConfigFileError(f"{path} has {size} bytes, which no {path.name} has")
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigFileError(f"{path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"{path} is not UTF-8: {error}") from None
    except RecursionError:
        raise ConfigFileError(f"{path} is nested too deeply") from None
    except ValueError as error:
        if isinstance(error, ConfigFileError):
            raise
        raise ConfigFileError(f"{path} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ConfigFileError(f"{path} is not a JSON object")
    return values


@dataclass(frozen=True)
class WeightFormats:
    """``kinds``: of tensors, such as ``W8A8``. ``int8_layers``: layers with a cache of 8 bits.

    ``has_int8_latents``: layers of MLA have scales of their latents, which a node that decodes what
    others read keeps in 8 bits.
    """

    kinds: frozenset[str]
    int8_layers: frozenset[int] = frozenset()
    has_int8_latents: bool = False

    @property
    def float8_kinds(self) -> tuple[str, ...]:
        """Kinds of weights of floating-point numbers of 8 or 4 bits."""
        return tuple(sorted(kind for kind in self.kinds if _FLOAT8.search(kind)))


def read_weight_formats(folder: Path, values: Mapping[str, Any]) -> WeightFormats | None:
    """What the description in a model's folder says; None where there is none.

    Args:
        values: its config.json, which may hold the description as ``quantization_config``.

    Raises ConfigFileError when it cannot be read.
    """
    found: Mapping[str, Any] | None = read_object(folder / DESCRIPTION)
    if found is None:
        found = values.get("quantization_config")
        # vLLM fills in an empty name.
        if not isinstance(found, Mapping) or found.get("quant_method") not in (None, "", "ascend"):
            return None
    if not found:
        return None
    layers = (_SCALE_OF_KEYS.search(name) for name in found)
    int8 = {int(layer[1]) for layer in layers if layer is not None}
    latents = any(name.endswith(_SCALE_OF_LATENTS) for name in found)
    return WeightFormats(
        frozenset(
            value
            for name, value in found.items()
            if isinstance(value, str) and name.endswith(".weight")
        ),
        frozenset(int8) if found.get("kv_cache_type") == INT8_CACHE else frozenset(),
        latents and bool(found.get("fa_quant_type")),
    )


def broken_weights(folder: Path) -> Iterator[str]:
    """A sentence for each file of weights that vLLM would read and cannot, by its header.

    None for a folder without files of weights: a check may come before they are fetched.
    """
    from safetensors import SafetensorError, safe_open

    if not os.path.isdir(folder) or any(folder.glob(OF_MISTRAL)):
        return
    there = {file.name for file in folder.glob("*.safetensors")}
    listed = _listed(folder)
    for name in sorted(there & listed if listed else there):
        try:
            with safe_open(folder / name, "np"):
                pass
        except (OSError, SafetensorError) as error:
            yield f"{folder / name} cannot be read: {_shown(error)}"
    for name in sorted(listed - there if there else ()):
        yield f"there is no file {folder / _shown(name)}"


def _listed(folder: Path) -> frozenset[str]:
    """The files that the index names, which vLLM reads alone; none without an index."""
    try:
        found = (read_object(folder / INDEX) or {}).get("weight_map")
    except ConfigFileError:
        return frozenset()
    return frozenset(map(str, found.values())) if isinstance(found, dict) else frozenset()


def _shown(value: object) -> str:
    """A name of a file's, short and without what a terminal would take for a command."""
    text = str(value).encode("unicode_escape").decode("ascii")
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}..."
