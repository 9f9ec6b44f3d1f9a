# SPDX-License-Identifier: Apache-2.0
"""Drafts whose layers lie in several KV groups: tokens, acceptance, and every draft token."""

from mkv_ascend.testing import engine
from tests.emulated.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    scenario,
)


def run_and_judge(case):
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    return result


def kv_groups(result, role):
    return {row["kv_group"] for row in result.layers if row["role"] == role}


def test_a_model_with_windows_drafting_for_itself_is_always_accepted():
    case = scenario("gemma3", "gemma3")
    result = run_and_judge(case)
    assert kv_groups(result, "draft") == {0, 1}
    assert result.accepted_per_position == [result.num_drafts] * case.num_speculative_tokens
    assert "The draft reads 2 KV groups" in result.log
    assert "builds attention metadata 2 times" in result.log


def test_a_draft_has_more_groups_than_its_target():
    result = run_and_judge(scenario("llama_target", "gemma3"))
    assert kv_groups(result, "target") < kv_groups(result, "draft")
    assert result.mean_acceptance_length > 2.5
