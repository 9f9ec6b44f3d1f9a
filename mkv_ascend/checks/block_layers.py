# SPDX-License-Identifier: Apache-2.0
"""Windows of layers of drafts of mask tokens, by their configuration.

The table is vLLM 0.30.0's (``qwen3_dflash``): ``layer_types`` names layers with a window, or
``use_swa`` gives all layers one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from mkv_ascend.checks.speculators_format import FORMAT

__all__ = ["BLOCK_CLASSES", "which_have_windows", "window_of_each_layer", "window_size"]

SLIDING = "sliding_attention"
BLOCK_CLASSES = frozenset({"DFlashDraftModel", "Qwen3DSparkModel"})
"""Classes of such drafts whose layers are Qwen3's."""


class Values(Protocol):
    """A config.json, of which single values are asked for."""

    def get(self, name: str, /) -> Any:
        """A value, None where there is none."""


def which_have_windows(text: Values) -> frozenset[bool]:
    """Whether layers of a draft with this configuration have windows: each answer once."""
    kinds, in_all = _windows(text)
    return frozenset(slides or in_all for slides in kinds or [False])


def window_of_each_layer(text: Values, layers: int) -> list[int]:
    """Tokens that each of these layers sees, 0 where it sees all."""
    kinds, in_all = _windows(text)
    size = window_size(text)
    return [size if slides or in_all else 0 for slides in (kinds or [False] * layers)[:layers]]


def window_size(text: Values) -> int:
    """Tokens that layers with a window see; 0 where the configuration does not say."""
    size = _options(text).get("swa_window_size")
    return int(size or (0 if _is_taken_away(text) else text.get("sliding_window") or 0))


def _is_taken_away(text: Values) -> bool:
    """Whether transformers' class of Qwen3 drops the size: by default it does.

    vLLM has a class of its own for the format of the library speculators, which keeps it.
    """
    if text.get(FORMAT) is not None:
        return False
    return text.get("model_type") == "qwen3" and not text.get("use_sliding_window")


def _options(text: Values) -> Mapping[str, Any]:
    given = text.get("dflash_config")
    return given if isinstance(given, Mapping) else {}


def _windows(text: Values) -> tuple[list[bool], bool]:
    """Which layers are named as having a window, and whether all have one beyond that."""
    kinds = [kind == SLIDING for kind in text.get("layer_types") or ()]
    return kinds, bool(_options(text).get("use_swa")) and not any(kinds)
