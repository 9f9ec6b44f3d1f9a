# SPDX-License-Identifier: Apache-2.0
"""Experts that move between ranks while an engine runs (``--enable-eplb``), beside a draft.

With weights of another expert, or the map of another rank, tokens of target or draft are wrong. A
thread of vllm-ascend moves them while graphs are replayed, so one case has graphs.
"""

import re

import pytest

from tests.support import hosts
from tests.support.loop_judgement import assert_reference
from tests.support.stock import RUNNER_V2

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")

OFTEN = {"policy": "stair", "window_size": 4, "step_interval": 6}
MOVED = re.compile(r"changed_layers=([1-9]\d*) rank_transfers=([1-9]\d*)")
"""vllm-ascend's words for a cycle of one model in which experts went to the other rank."""


@pytest.mark.core
@pytest.mark.nightly("other cases of it stay", cases=["*-None"])
@pytest.mark.parametrize(
    ("target", "draft", "method", "graphs"),
    [
        ("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", "FULL_DECODE_ONLY"),
        ("glm4_moe_wide_mtp", "glm4_moe_wide_mtp", "mtp", None),
        ("qwen3_next_mtp", "qwen3_next_mtp", "mtp", None),
        ("deepseek_v2_target", "deepseek_v2_eagle3", "eagle3", None),
    ],
)
def test_proposals_and_acceptance_are_the_references(target, draft, method, graphs):
    result = assert_reference(
        target,
        draft,
        method,
        3,
        RUNNER_V2,
        engine={
            "tensor_parallel_size": 2,
            "enable_expert_parallel": True,
            "enable_eplb": True,
            "eplb_config": OFTEN,
        },
        graphs=graphs,
    )
    assert (result.draft_replays > 5) == bool(graphs)
    assert len(MOVED.findall(result.log)) > 1
