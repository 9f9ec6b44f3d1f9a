# SPDX-License-Identifier: Apache-2.0
"""Targets and drafts with backends of their own: tokens, acceptance, and every draft token."""

import pytest

from tests.support import engine
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    backends,
    scenario,
)

FLASH_3_DRAFT = {"attention": {"draft": {"full_attention": "flash_attention_3"}}}
FLASH_3_TARGET = {"attention": {"target": "flash_attention_3"}}

one_and_two_devices = pytest.mark.parametrize("tensor_parallel_size", [1, 2], ids=["tp1", "tp2"])


def run_and_judge(case, tensor_parallel_size=1):
    case = engine.dataclasses.replace(
        case, engine={**case.engine, "tensor_parallel_size": tensor_parallel_size}
    )
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    return result


@pytest.mark.smoke
@one_and_two_devices
def test_mla_target_with_dense_draft(tensor_parallel_size):
    case = scenario("deepseek_v2_target", "llama_draft")
    result = run_and_judge(case, tensor_parallel_size)
    assert backends(result) == {"target": {"mla"}, "draft": {"fused_infer_attention"}}
    assert result.mean_acceptance_length > 1.8


@pytest.mark.host("0.23", cases=["tp1"])
@pytest.mark.nightly("other cases of it stay", cases=["tp2"])
@one_and_two_devices
def test_dense_target_with_dense_draft_on_another_backend(tensor_parallel_size):
    case = scenario("llama_target", "llama_draft", mkv_ascend=FLASH_3_DRAFT)
    result = run_and_judge(case, tensor_parallel_size)
    assert backends(result) == {
        "target": {"fused_infer_attention"},
        "draft": {"flash_attention_3"},
    }
    assert result.mean_acceptance_length > 1.8


@pytest.mark.host("0.23")
def test_target_on_flash_attention_3_verifies_drafts():
    """vllm-ascend's own implementation attends without a causal mask in the verify step."""
    result = run_and_judge(scenario("llama_target", "llama_draft", mkv_ascend=FLASH_3_TARGET))
    assert backends(result) == {
        "target": {"flash_attention_3"},
        "draft": {"fused_infer_attention"},
    }
    assert result.mean_acceptance_length > 1.8


@pytest.mark.host("0.23", cases=["tp1"])
@pytest.mark.nightly("other cases of it stay", cases=["tp2"])
@one_and_two_devices
def test_a_model_drafting_for_itself_is_always_accepted(tensor_parallel_size):
    case = scenario("llama_target", "llama_target")
    result = run_and_judge(case, tensor_parallel_size)
    assert result.num_drafts > 0
    assert result.accepted_per_position == [result.num_drafts] * case.num_speculative_tokens


def test_an_mla_model_drafting_for_itself_is_always_accepted():
    """Cosines and sines of every pass are the draft's own; stock accepts about 15 % here."""
    case = scenario("deepseek_v2_target", "deepseek_v2_target")
    result = run_and_judge(case)
    assert backends(result) == {"target": {"mla"}, "draft": {"mla"}}
    assert result.accepted_per_position == [result.num_drafts] * case.num_speculative_tokens


@pytest.mark.host("0.23")
def test_drafts_stay_right_through_chunks_and_prefix_hits():
    case = scenario(
        "deepseek_v2_target",
        "llama_draft",
        engine={"max_num_batched_tokens": 64, "max_num_seqs": 4},
        repeats=2,
    )
    result = run_and_judge(case)
    second_round = result.cached_tokens[len(case.prompts) :]
    assert max(second_round) >= 128
