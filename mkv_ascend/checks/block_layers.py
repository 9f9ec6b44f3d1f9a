# SPDX-License-Identifier: Apache-2.0
"""What layers of drafts of mask tokens see, by their configuration.

The table is vLLM 0.30.0's (``qwen3_dflash``): ``layer_types`` names layers with a window, or
``use_swa`` gives all layers one. A layer with a window that ``layer_types`` names is causal, others
see the mask tokens behind their own; ``causal`` and ``is_causal`` say it for all layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["BLOCK_CLASSES", "LayerOfBlocks", "layers_of_blocks", "window_of_each_layer"]

SLIDING = "sliding_attention"
BLOCK_CLASSES = frozenset({"DFlashDraftModel", "Qwen3DSparkModel"})
"""Classes of such drafts whose layers are Qwen3's."""


class Values(Protocol):
    """A config.json, of which single values are asked for."""

    def get(self, name: str, /) -> Any:
        """A value, None where there is none."""


@dataclass(frozen=True)
class LayerOfBlocks:
    """``has_window``: whether it sees the last tokens alone; ``causal``: no later mask token."""

    has_window: bool
    causal: bool


def layers_of_blocks(text: Values) -> tuple[LayerOfBlocks, ...]:
    """The layers, each kind of them once, of a draft with this configuration."""
    kinds, in_all = _windows(text)
    causal = text.get("is_causal")
    causal = _options(text).get("causal") if causal is None else causal
    return tuple(
        LayerOfBlocks(slides or in_all, slides if causal is None else bool(causal))
        for slides in sorted(set(kinds or [False]))
    )


def window_of_each_layer(text: Values, layers: int) -> list[int]:
    """Tokens that each of these layers sees, 0 where it sees all."""
    kinds, in_all = _windows(text)
    size = int(_options(text).get("swa_window_size") or text.get("sliding_window") or 0)
    return [size if slides or in_all else 0 for slides in (kinds or [False] * layers)[:layers]]


def _options(text: Values) -> Mapping[str, Any]:
    given = text.get("dflash_config")
    return given if isinstance(given, Mapping) else {}


def _windows(text: Values) -> tuple[list[bool], bool]:
    """Which layers are named as having a window, and whether all have one beyond that."""
    kinds = [kind == SLIDING for kind in text.get("layer_types") or ()]
    return kinds, bool(_options(text).get("use_swa")) and not any(kinds)
