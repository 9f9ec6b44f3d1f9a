# SPDX-License-Identifier: Apache-2.0
"""A decoder layer may have two attentions, each with an index of its own."""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters.patching import patch


@patch(
    name="two attentions of a layer",
    target="vllm_ascend.patch.worker.patch_deepseek_v2:extract_layer_index",
    reads=(
        "vllm.model_executor.models.longcat_flash:FlashDecoderLayer.__init__",
        "vllm_ascend.patch.worker.patch_deepseek_v2:_deepseek_v2_mla_attention_init",
    ),
    why="LongCat-Flash's layers have two attentions each, and vLLM's function refuses a name with "
    "two indices. vllm-ascend calls it for every layer with MLA, to choose those that share an "
    "indexer.",
    until="vllm-ascend asks for the index of layers with an indexer alone",
    test=(
        "tests/emulated/benchmarks/test_matrix.py::test_a_cell_ends_as_published",
        "tests/emulated/models/test_longcat_flash.py",
    ),
)
def count_attentions(original: Any, name: str, *args: Any) -> int:
    """``extract_layer_index``, which counts attentions where a layer has two."""
    in_pairs = name.rpartition(".")[2].isdigit()
    found: int = original(name, *((2,) if in_pairs else args))
    return found
