# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend as it is released, without our plugin, gives Hugging Face's tokens here.

So what differs with the plugin is the plugin's doing, not the emulated NPU's. Families whose tokens
it does not give in float32 are left out: MLA, whose prefills it rounds to bfloat16, and windows,
which it lets see one key more.
"""

from __future__ import annotations

import pytest

from tests.support import engine, hosts, stock


def test_eagerly() -> None:
    stock.run("llama_target")


@pytest.mark.parametrize("name", ["llama_target", "qwen3_moe"])
def test_in_graphs_of_decoding(name: str) -> None:
    stock.run(name, graphs="FULL_DECODE_ONLY")


def test_in_graphs_of_pieces_and_of_decoding() -> None:
    stock.run("llama_target", graphs="FULL_AND_PIECEWISE", traced=True)


@hosts.only_on("vllm_ascend_0_30", "0.23.0 starts the kernels of Mamba2 itself")
def test_mamba2_is_not_served_by_model_runner_v1() -> None:
    """A fault of the host, which the plugin mends: the runner starts no backend of the kernels."""
    with pytest.raises(
        engine.EngineFailedError, match="Mamba SSU backend has not been initialized"
    ):
        stock.run("granite4")
