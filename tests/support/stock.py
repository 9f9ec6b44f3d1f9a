# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend as it is released, without our plugin, in the engines of tests."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import engine, hosts
from tests.support.pairs import assert_greedy_tokens_of_reference, scenario, text_prompts
from tests.support.tiny_models import model_directory

STOCK = {"VLLM_PLUGINS": "ascend,ascend_kv_connector,ascend_model,ascend_model_loader"}
"""Plugins that come with vllm-ascend, and no other."""
# Where vLLM finds no Triton, vllm-ascend leaves out its patches of that runner.
RUNNER_V2 = {"VLLM_USE_V2_MODEL_RUNNER": "1", "EMULATED_NPU_TRITON": "1"}
"""vLLM's model runner V2, which vllm-ascend 0.30.0rc2 has as an option."""
RUNNERS = [
    pytest.param({"v1": {}, "v2": RUNNER_V2}[name], id=name) for name in hosts.ADAPTER.RUNNERS
]
"""Variables of each model runner that the host has."""
each_runner = pytest.mark.parametrize("runner", RUNNERS)
"""Runs a test with the variables of each model runner that the host has."""
CHUNKS = {"max_num_batched_tokens": 64, "max_num_seqs": 4}
"""Arguments of an engine that makes more than one chunk of a prompt."""


def run(
    target: str,
    draft: str | None = None,
    *,
    v2: bool = False,
    rounds_to: str | None = None,
    **fields: Any,
) -> tuple[engine.Scenario, engine.Result]:
    """Run tiny models by name in stock vllm-ascend; every token is Hugging Face's greedy one.

    Args:
        target, draft: names of tiny models.
        v2: whether by model runner V2.
        rounds_to: the dtype that a part of the engine rounds to, if it is not the engine's.
        fields: of the scenario; by default every fourth prompt of text and 16 tokens.
    """
    values: dict[str, Any] = {
        "prompts": text_prompts(model_directory(target))[::4],
        "max_tokens": 16,
        "engine": CHUNKS,
        **fields,
    }
    environment = {**STOCK, **(RUNNER_V2 if v2 else {}), **values.pop("environment", {})}
    case = scenario(target, draft, environment=environment, **values)
    result = engine.run(case)
    assert result.platform.startswith("vllm_ascend."), result.platform
    # What vllm-ascend warns of when it makes that runner.
    assert ("npu model runner v2" in result.log) == v2, result.log[-3000:]
    assert_greedy_tokens_of_reference(case, result, rounds_to)
    return case, result
