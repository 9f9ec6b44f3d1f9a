# SPDX-License-Identifier: Apache-2.0
"""Layers of families whose numbers differ from layer to layer, on one of two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mkv_ascend.checks.model_config import ModelConfig
from mkv_ascend.checks.model_layer import ModelLayer, NotFromNumbersError
from mkv_ascend.layout.kind import Kind

RANKS, DRAFT_TOKENS = 2, 3
SLIDING, WHOLE = "sliding_attention", "full_attention"
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "hidden_size": 64}


def layers(model_type: str, values: dict[str, Any]) -> list[ModelLayer]:
    config = ModelConfig(Path("a model"), model_type, {**HEADS, **values})
    return config.layers(RANKS, DRAFT_TOKENS)


GEMMA4 = {
    "num_hidden_layers": 4,
    "layer_types": [SLIDING, WHOLE, SLIDING, WHOLE],
    "sliding_window": 32,
    "global_head_dim": 48,
    "num_global_key_value_heads": 2,
    "attention_k_eq_v": True,
    "num_kv_shared_layers": 1,
}


@pytest.mark.parametrize(
    ("changed", "count", "heads", "size"),
    [
        ({}, 3, 1, 48),
        ({"attention_k_eq_v": False}, 3, 2, 48),
        ({"num_global_key_value_heads": None}, 3, 2, 48),
        ({"global_head_dim": None, "num_kv_shared_layers": None}, 4, 1, 16),
    ],
)
def test_gemma_4_has_heads_of_two_sizes(
    changed: dict[str, Any], count: int, heads: int, size: int
) -> None:
    window = ModelLayer(Kind.SLIDING_WINDOW, 4, 2, 16, 32)
    whole = ModelLayer(Kind.FULL_ATTENTION, 4, heads, size)
    found = layers("gemma4_text", {**GEMMA4, **changed})
    assert found == [window, whole, window, whole][:count]


def test_gemma_4_that_sees_what_comes_is_not_told_by_its_numbers() -> None:
    with pytest.raises(NotFromNumbersError, match="use_bidirectional_attention is 'all'"):
        layers("gemma4_text", {**GEMMA4, "use_bidirectional_attention": "all"})


def test_states_of_granite_4_have_room_for_draft_tokens() -> None:
    """Blocks are aligned by the states without it."""
    values = {
        "layer_types": ["mamba", "attention"],
        "mamba_n_groups": 4,
        "mamba_n_heads": 8,
        "mamba_d_head": 24,
        "mamba_d_state": 5,
        "mamba_d_conv": 4,
        "mamba_expand": 3,
    }
    state, attention = layers("granitemoehybrid", values)
    # Half of 3 x 64 channels, and two vectors of the states of two groups.
    channels, recurrent = 96 + 2 * 2 * 5, (4, 24, 5)
    assert state == ModelLayer(
        Kind.MAMBA,
        states=((3 + DRAFT_TOKENS, channels), recurrent),
        module="mixer",
        aligned_states=((3, channels), recurrent),
    )
    assert attention == ModelLayer(Kind.FULL_ATTENTION, 4, 2, 16)


@pytest.mark.parametrize(("asked", "window"), [(64, 64), (None, 0), (-1, 0)])
def test_windows_of_mimo_v2_have_heads_of_their_own(asked: int | None, window: int) -> None:
    values = {
        "num_hidden_layers": 2,
        "hybrid_layer_pattern": [0, 1],
        "v_head_dim": 12,
        "swa_num_attention_heads": 12,
        "swa_num_key_value_heads": 6,
        "swa_head_dim": 20,
        "swa_v_head_dim": 14,
        "sliding_window_size": asked,
        "add_swa_attention_sink_bias": True,
    }
    kind = Kind.SLIDING_WINDOW if window else Kind.FULL_ATTENTION
    own = ModelLayer(kind, 6, 3, 20, window, has_sink=True, value_size=14)
    whole = ModelLayer(Kind.FULL_ATTENTION, 4, 2, 16, value_size=12)
    assert layers("mimo_v2_flash", values) == [whole, own]
    # Whatever stands last in the model.
    values["hybrid_layer_pattern"] = [1, 0]
    config = ModelConfig(Path("a model"), "mimo_v2_flash", {**HEADS, **values})
    assert config.mtp_layers(RANKS) == [own]
