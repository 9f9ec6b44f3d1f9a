# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend as it is released, without our plugin, gives Hugging Face's tokens here.

So what differs with the plugin is the plugin's doing, not the emulated NPU's. Families whose tokens
it does not give in float32 are left out: MLA, whose prefills it rounds to bfloat16, and windows,
which it lets see one key more.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import engine, hosts
from tests.support.pairs import assert_greedy_tokens_of_reference, scenario, text_prompts
from tests.support.tiny_models import model_directory

STOCK = {"VLLM_PLUGINS": "ascend,ascend_kv_connector,ascend_model,ascend_model_loader"}
"""Plugins that come with vllm-ascend, and no other."""
CHUNKS = {"max_num_batched_tokens": 64, "max_num_seqs": 4}


def assert_stock_gives_the_tokens(name: str, **fields: Any) -> None:
    prompts = text_prompts(model_directory(name))[::4]
    case = scenario(
        name, prompts=prompts, max_tokens=16, engine=CHUNKS, environment=STOCK, **fields
    )
    result = engine.run(case)
    assert result.platform.startswith("vllm_ascend."), result.platform
    assert_greedy_tokens_of_reference(case, result)


def test_eagerly() -> None:
    assert_stock_gives_the_tokens("llama_target")


@pytest.mark.parametrize("name", ["llama_target", "qwen3_moe"])
def test_in_graphs_of_decoding(name: str) -> None:
    assert_stock_gives_the_tokens(name, graphs="FULL_DECODE_ONLY")


def test_in_graphs_of_pieces_and_of_decoding() -> None:
    assert_stock_gives_the_tokens("llama_target", graphs="FULL_AND_PIECEWISE", traced=True)


@hosts.only_on("vllm_ascend_0_30", "0.23.0 starts the kernels of Mamba2 itself")
def test_mamba2_is_not_served_by_model_runner_v1() -> None:
    """A fault of the host, which the plugin mends: the runner starts no backend of the kernels."""
    with pytest.raises(
        engine.EngineFailedError, match="Mamba SSU backend has not been initialized"
    ):
        assert_stock_gives_the_tokens("granite4")
