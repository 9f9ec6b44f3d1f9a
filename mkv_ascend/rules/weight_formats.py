# SPDX-License-Identifier: Apache-2.0
"""How a model's weights and its cache are quantised, as ModelSlim describes it beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkv_ascend.rules.json_file import read_object

__all__ = ["DESCRIPTION", "WeightFormats", "read_weight_formats"]

DESCRIPTION = "quant_model_description.json"
"""The file's name (``MODELSLIM_CONFIG_FILENAME`` of vllm-ascend)."""
MOST_BYTES = 256 << 20
INT8_CACHE = "C8"
_SCALE_OF_KEYS = re.compile(r"\.([0-9]{1,9})\.(?:.*\.)?k_proj\.kv_cache_scale$")
_SCALE_OF_LATENTS = ".fa_k.scale"
_FLOAT8 = re.compile(r"FP8|FP4")
"""In the kinds of weights whose operators only A5 has (``MXFP8`` and others)."""


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
    found = read_object(folder / DESCRIPTION, MOST_BYTES)
    if found is None:
        within = values.get("quantization_config")
        if not isinstance(within, Mapping) or not within:
            return None
        # vLLM fills in an empty name.
        return _formats(within) if within.get("quant_method") in (None, "", "ascend") else None
    return _formats(found)


def _formats(found: Mapping[str, Any]) -> WeightFormats:
    kinds = frozenset(
        value
        for name, value in found.items()
        if isinstance(value, str) and name.endswith(".weight")
    )
    layers = (_SCALE_OF_KEYS.search(name) for name in found)
    int8 = {int(layer[1]) for layer in layers if layer is not None}
    latents = any(name.endswith(_SCALE_OF_LATENTS) for name in found)
    return WeightFormats(
        kinds,
        frozenset(int8) if found.get("kv_cache_type") == INT8_CACHE else frozenset(),
        latents and bool(found.get("fa_quant_type")),
    )
