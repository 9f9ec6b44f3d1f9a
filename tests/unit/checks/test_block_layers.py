# SPDX-License-Identifier: Apache-2.0
"""Windows of layers of a draft of mask tokens, by their configuration."""

from __future__ import annotations

from typing import Any

import pytest

from mkv_ascend.checks.block_layers import which_have_windows, window_of_each_layer

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
