# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend 0.30.0rc2 alone, without our plugin, on the emulated NPU.

What it gives here is Hugging Face's, so what differs with the plugin is the plugin's doing.
"""

from __future__ import annotations

import pytest

from tests.support import engine, hosts
from tests.support.pairs import assert_greedy_tokens_of_reference, scenario, text_prompts
from tests.support.tiny_models import model_directory

STOCK = {"VLLM_PLUGINS": "ascend,ascend_kv_connector,ascend_model,ascend_model_loader"}
"""Plugins that come with vllm-ascend, and no other."""

pytestmark = hosts.only_on(
    "vllm_ascend_0_30", "the emulated NPU is judged here for the operators that 0.30 calls"
)


def run_stock(name: str, **fields) -> None:
    prompts = text_prompts(model_directory(name), 4)
    case = scenario(name, environment=STOCK, prompts=prompts, max_tokens=16, **fields)
    result = engine.run(case)
    assert result.platform.startswith("vllm_ascend."), result.platform
    assert_greedy_tokens_of_reference(case, result)


def test_experts_in_graphs() -> None:
    run_stock("qwen3_moe", graphs="FULL_DECODE_ONLY")


def test_mamba2_is_not_served_by_model_runner_v1() -> None:
    """A fault of the host, which the plugin mends: the runner starts no backend of the kernels."""
    with pytest.raises(
        engine.EngineFailedError, match="Mamba SSU backend has not been initialized"
    ):
        run_stock("granite4")
