# SPDX-License-Identifier: Apache-2.0
"""What layers of drafts of mask tokens see, by their configuration.

The table is vLLM 0.30.0's (``qwen3_dflash``): ``layer_types`` names layers with a window, or
``use_swa`` gives all layers one. A layer with a window that ``layer_types`` names is causal, others
see the mask tokens behind their own; ``causal`` and ``is_causal`` say it for all layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["LayerOfBlocks", "layers_of_blocks"]

SLIDING = "sliding_attention"


@dataclass(frozen=True)
class LayerOfBlocks:
    """``has_window``: whether it sees the last tokens alone; ``causal``: no later mask token."""

    has_window: bool
    causal: bool


def layers_of_blocks(text: Mapping[str, Any]) -> tuple[LayerOfBlocks, ...]:
    """The layers, each kind of them once, of a draft with this configuration."""
    given = text.get("dflash_config")
    options: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    kinds = [kind == SLIDING for kind in text.get("layer_types") or ()]
    in_all = bool(options.get("use_swa")) and not any(kinds)
    causal = text.get("is_causal")
    causal = options.get("causal") if causal is None else causal
    return tuple(
        LayerOfBlocks(slides or in_all, slides if causal is None else bool(causal))
        for slides in sorted(set(kinds or [False]))
    )
