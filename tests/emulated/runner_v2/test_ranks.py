# SPDX-License-Identifier: Apache-2.0
"""Drafts over several ranks on model runner V2: every draft token is the draft's own."""

import pytest

from tests.support import engine, hosts
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    scenario,
    text_prompts,
)
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")


@pytest.mark.core
@pytest.mark.nightly("other cases of it stay", cases=["eager"])
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"], ids=["eager", "graphs"])
def test_two_ranks_of_tensor_parallelism(graphs):
    """The draft has two KV groups and another backend than the target."""
    case = scenario(
        "deepseek_v2_target",
        "gemma3_draft",
        prompts=text_prompts(model_directory("deepseek_v2_target"), 5)[2:],
        max_tokens=16,
        graphs=graphs,
        capture_sizes=(4, 12) if graphs else (),
        engine={"tensor_parallel_size": 2},
        environment=RUNNER_V2,
    )
    result = engine.run(case)
    assert "The draft reads 2 KV groups" in result.log
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert (result.draft_replays > 5) == bool(graphs)
