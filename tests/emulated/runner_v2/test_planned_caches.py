# SPDX-License-Identifier: Apache-2.0
"""KV caches on model runner V2 come from the plan, which is model runner V1's."""

from tests.support import engine, hosts
from tests.support.pairs import scenario
from tests.support.stock import RUNNER_V2

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")

PLANNED = "KV cache plan"


def plan_in(log: str) -> list[str]:
    """The lines of the plan's table in an engine's log, without what the log puts before them."""
    lines = log.splitlines()
    first = next(index for index, line in enumerate(lines) if PLANNED in line)
    return [line.partition("] ")[2] or line for line in lines[first : first + 8]]


def test_both_runners_have_one_plan():
    """For a target with windows and a draft with others; three groups share bytes."""
    cases = [
        scenario("gemma3", "gemma3_draft", prompts=[[5, 6, 7]], max_tokens=4, environment=variables)
        for variables in ({}, RUNNER_V2)
    ]
    v1, v2 = (engine.run(case) for case in cases)
    assert "npu model runner v2" in v2.log
    assert v2.num_gpu_blocks == v1.num_gpu_blocks
    assert plan_in(v2.log) == plan_in(v1.log)
