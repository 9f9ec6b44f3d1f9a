# SPDX-License-Identifier: Apache-2.0
"""Drafts over several ranks of a target."""

import re

import pytest

from tests.support import engine, reference, speculation
from tests.support.pairs import (
    TIES,
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    scenario,
    text_prompts,
)
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

pytestmark = pytest.mark.host("0.23")


@pytest.mark.parametrize(
    ("target", "draft", "method", "page", "options"),
    [
        ("llama_target", "llama_eagle", "eagle", 2, {}),
        # The target's experts are spread over ranks of which the head has one. It has twice as many
        # heads of keys as the target.
        ("qwen3_moe", "qwen3_moe_eagle3", "eagle3", 4, {"enable_expert_parallel": True}),
    ],
)
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"], ids=["eager", "graphs"])
@pytest.mark.nightly("other cases of it stay", cases=["v2-*", "*-eager-qwen3_moe-*"])
@each_runner
def test_a_head_may_be_whole_on_every_rank_of_its_target(
    target, draft, method, page, options, graphs, runner
):
    case = scenario(
        target,
        draft,
        prompts=text_prompts(model_directory(target), 5)[2:],
        max_tokens=12,
        num_speculative_tokens=2,
        speculative={"method": method, "draft_tensor_parallel_size": 1},
        engine={"tensor_parallel_size": 2, **options},
        graphs=graphs,
        capture_sizes=(3, 9) if graphs else (),
        environment=runner,
    )
    result = engine.run(case)
    target_page, draft_page = (
        float(re.search(rf" {role} +full_attention +\S+ +([0-9.]+) KiB", result.log)[1])
        for role in ("target", "draft")
    )
    # Model runner V2 takes the number of ranks from the target: each has half of the head.
    whole = page / 2 if engine.runs_v2(runner) else page
    assert draft_page == whole * target_page, "all heads of the draft, half of the target's"
    assert_greedy_tokens_of_reference(case, result)
    head = speculation.DraftHead(model_directory(draft), model_directory(target))
    near_tie, _ = TIES[engine.compared_dtype()]
    report = reference.judge(head.rows, result.proposals, near_tie)
    assert report.checked == case.num_speculative_tokens * len(result.proposals) > 20
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert result.mean_acceptance_length > 1.5
    assert (result.draft_replays > 3) == bool(graphs)


def test_a_draft_with_experts_serves_a_target_without_on_several_ranks():
    """Each rank has its share of every expert. Passes of the draft are captured as well."""
    case = scenario(
        "llama_target",
        "gpt_oss_draft",
        prompts=text_prompts(model_directory("llama_target"), 5)[2:],
        max_tokens=16,
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(12,),
        engine={"tensor_parallel_size": 2},
    )
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert result.mean_acceptance_length > 1.3
    assert result.draft_replays > 5
