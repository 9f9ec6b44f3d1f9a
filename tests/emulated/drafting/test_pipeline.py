# SPDX-License-Identifier: Apache-2.0
"""Drafts of a target that is spread over two pipeline stages.

Two batches are under way at once, so requests leave and enter a stage's batch from step to step. A
first stage that appends a wrong token computes wrong keys once the request comes back to it.
"""

import pytest

from tests.support import engine
from tests.support.loop_judgement import REFERENCE_OF, assert_reference
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy,
    assert_greedy_tokens_of_reference,
    backends,
    scenario,
    text_prompts,
)
from tests.support.tiny_models import model_directory

STAGES = {"pipeline_parallel_size": 2}
K = 3

needs_float32 = pytest.mark.skipif(
    engine.compared_dtype() != "float32",
    reason="in 16 bits too many choices are near ties to tell what an engine must do",
)


@needs_float32
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"])
@pytest.mark.parametrize(
    ("target", "draft", "method"),
    [
        pytest.param("gemma3", "gemma3_draft", "draft_model", id="draft_model"),
        pytest.param("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", id="mtp"),
        pytest.param("llama_target", "llama_eagle", "eagle", id="eagle"),
    ],
)
def test_tokens_proposals_and_acceptance_are_the_references(target, draft, method, graphs):
    """Prompts in chunks that overlap in the pipeline, blocks that are used again soon."""
    result = assert_reference(target, draft, method, K, engine=STAGES, graphs=graphs)
    assert (result.draft_replays > 0) == (graphs is not None)


def test_more_requests_than_two_batches_hold():
    """In graphs, behind prefix hits."""
    case = scenario(
        "gemma3",
        "gemma3",
        engine={**STAGES, "max_num_seqs": 3, "max_num_batched_tokens": 64},
        graphs="FULL_DECODE_ONLY",
        record_drafts=False,
        speculative={"method": "draft_model"},
        repeats=2,
    )
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    # A model that drafts for itself is always right.
    assert result.accepted_per_position == [result.num_drafts] * K
    assert sum(result.cached_tokens) > 0
    assert result.draft_replays > 0


def test_what_vllm_schedules_ahead_by_itself_is_not():
    case = scenario(
        "deepseek_v3_mtp",
        "deepseek_v3_mtp",
        engine={**STAGES, "max_num_seqs": 4},
        record_drafts=False,
        speculative={"method": "mtp"},
        graphs="FULL_DECODE_ONLY",
    )
    result = engine.run(case)
    reference = model_directory(REFERENCE_OF["deepseek_v3_mtp"])
    assert_greedy(reference, case.prompts, result.tokens, case.max_tokens)
    assert result.num_accepted > 0.2 * result.num_draft_tokens
    assert "Asynchronous scheduling is off: with a draft over pipeline stages" in result.log


def test_tokens_that_are_looked_up():
    """No draft model, but the same steps: vLLM schedules these for less than no tokens."""
    case = scenario(
        "llama_target",
        prompts=[prompt * 3 for prompt in text_prompts(model_directory("llama_target"))[:6]],
        engine={
            **STAGES,
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": K,
                "prompt_lookup_max": 3,
            },
        },
    )
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert 0 < result.num_accepted < result.num_draft_tokens


def test_a_preempted_request_goes_on():
    case = scenario(
        "gemma3",
        "gemma3_draft",
        prompts=text_prompts(model_directory("gemma3"))[:6],
        engine=STAGES,
        force_preemption=True,
    )
    result = engine.run(case)
    assert result.preemptions > 0
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert set(backends(result)) == {"target", "draft"}
