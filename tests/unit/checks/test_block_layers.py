# SPDX-License-Identifier: Apache-2.0
"""What layers of a draft of mask tokens see, by their configuration."""

from __future__ import annotations

from typing import Any

import pytest

from mkv_ascend.checks.block_layers import LayerOfBlocks, layers_of_blocks

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
