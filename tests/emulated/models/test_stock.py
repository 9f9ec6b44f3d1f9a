# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend as it is released, without our plugin, gives Hugging Face's tokens here.

So what differs with the plugin is the plugin's doing, not the emulated NPU's. Where stock is not
exact it is judged within what it is: prompts and answers of Gemma3 fit into its window, which stock
lets see one key more, and MLA, whose prefills it computes in bfloat16, runs whole in bfloat16.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import engine, hosts, stock
from tests.support.pairs import text_prompts
from tests.support.tiny_models import model_directory

TARGETS = ["llama_target", "qwen3_moe", "gemma3", "deepseek_v2_target", "qwen3_next"]
WITHIN_A_WINDOW = 14
"""Tokens of a prompt that fit into a window of 32 with an answer of 16."""


def judged(target: str) -> dict[str, Any]:
    """How the tokens of this target are judged."""
    if target == "gemma3":
        prompts = [prompt[:WITHIN_A_WINDOW] for prompt in text_prompts(model_directory(target))]
        return {"prompts": prompts[::4]}
    if target == "deepseek_v2_target":
        return {"rounds_to": "bfloat16", "engine": {**stock.CHUNKS, "dtype": "bfloat16"}}
    return {}


@pytest.mark.host("0.23", cases=["llama_target"])
@pytest.mark.nightly(
    "stock alone, which changes when a host does",
    cases=["deepseek_v2_target", "gemma3", "qwen3_moe", "qwen3_next"],
)
@pytest.mark.parametrize("target", TARGETS)
def test_eagerly(target: str) -> None:
    stock.run(target, **judged(target))


@pytest.mark.nightly("stock alone, which changes when a host does")
@pytest.mark.parametrize("target", TARGETS)
def test_in_graphs_of_decoding(target: str) -> None:
    stock.run(target, graphs="FULL_DECODE_ONLY", **judged(target))


@pytest.mark.host("0.23")
def test_in_graphs_of_pieces_and_of_decoding() -> None:
    stock.run("llama_target", graphs="FULL_AND_PIECEWISE", traced=True)


@hosts.only_on("vllm_ascend_0_30", "0.23.0 starts the kernels of Mamba2 itself")
def test_mamba2_is_not_served_by_model_runner_v1() -> None:
    """A fault of the host, which the plugin mends: the runner starts no backend of the kernels."""
    with pytest.raises(
        engine.EngineFailedError, match="Mamba SSU backend has not been initialized"
    ):
        stock.run("granite4")
