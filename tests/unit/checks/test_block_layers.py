# SPDX-License-Identifier: Apache-2.0
"""Windows of layers of a draft of mask tokens, by their configuration."""

from __future__ import annotations

from typing import Any

import pytest

from mkv_ascend.checks.block_layers import which_have_windows, window_of_each_layer, window_size
from mkv_ascend.checks.config_defaults import completed
from mkv_ascend.checks.speculators_format import as_vllm_reads

SLIDING, WHOLE = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ({}, {False}),
        ({"layer_types": [WHOLE, SLIDING]}, {False, True}),
        ({"layer_types": [SLIDING, SLIDING]}, {True}),
        ({"dflash_config": {"use_swa": True}}, {True}),
        ({"dflash_config": {"use_swa": True}, "layer_types": [WHOLE, SLIDING]}, {False, True}),
        ({"dflash_config": "nothing", "layer_types": None}, {False}),
    ],
)
def test_which_layers_have_windows(text: dict[str, Any], found: set[bool]) -> None:
    """As vLLM answers; ``test_windows_in_blocks`` asks vLLM itself."""
    assert which_have_windows(text) == found


@pytest.mark.parametrize(
    ("text", "windows"),
    [
        ({}, [0, 0, 0]),
        ({"layer_types": [SLIDING, WHOLE, SLIDING], "sliding_window": 48}, [48, 0, 48]),
        ({"dflash_config": {"use_swa": True, "swa_window_size": 32}}, [32, 32, 32]),
        (
            {
                "layer_types": [WHOLE, SLIDING, WHOLE],
                "sliding_window": 48,
                "dflash_config": {"use_swa": True, "swa_window_size": 32},
            },
            [0, 32, 0],
        ),
    ],
)
def test_windows_of_a_plan(text: dict[str, Any], windows: list[int]) -> None:
    assert window_of_each_layer(text, 3) == windows


def test_a_size_that_one_class_of_configurations_drops_and_another_keeps() -> None:
    """``Qwen3Config`` of transformers and ``SpeculatorsConfig`` of vLLM 0.30.0."""
    layers = {"model_type": "qwen3", "sliding_window": 64}
    assert window_size(layers) == 0
    assert window_size({**layers, "use_sliding_window": True}) == 64
    head = {"speculators_config": {}, "speculators_model_type": "dflash"}
    read = as_vllm_reads({**head, "transformer_layer_config": layers})
    # The plan is made from what defaults complete.
    for text in (read, *completed([read])):
        assert window_size(text) == 64
    (plain,) = completed([layers])
    assert window_size(plain) == 0
