# SPDX-License-Identifier: Apache-2.0
"""What layers of a draft of mask tokens see, by their configuration."""

from __future__ import annotations

from typing import Any

import pytest

from mkv_ascend.checks.block_layers import (
    LayerOfBlocks,
    layers_of_blocks,
    window_of_each_layer,
)

SLIDING, WHOLE = "sliding_attention", "full_attention"


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ({}, {(False, False)}),
        ({"layer_types": [WHOLE, SLIDING]}, {(False, False), (True, True)}),
        ({"layer_types": [SLIDING, SLIDING]}, {(True, True)}),
        ({"dflash_config": {"use_swa": True}}, {(True, False)}),
        ({"dflash_config": {"causal": True}}, {(False, True)}),
        ({"is_causal": False, "layer_types": [SLIDING]}, {(True, False)}),
        ({"dflash_config": "nothing", "layer_types": None}, {(False, False)}),
    ],
)
def test_windows_and_masks_by_configuration(
    text: dict[str, Any], layers: set[tuple[bool, bool]]
) -> None:
    """As vLLM answers; ``test_windows_in_blocks`` asks vLLM itself."""
    assert set(layers_of_blocks(text)) == {LayerOfBlocks(*layer) for layer in layers}


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
