# SPDX-License-Identifier: Apache-2.0
"""Drafts of a target that is spread over pipeline stages, two of them if not said otherwise.

Two batches are under way at once, so requests leave and enter a stage's batch from step to step. A
first stage that appends a wrong token computes wrong keys once the request comes back to it.
"""

from types import SimpleNamespace

import pytest
from vllm.distributed import parallel_state
from vllm.distributed import utils as distributed_utils

from mkv_ascend.adapters.common import pipeline
from tests.support import engine, speculation
from tests.support.loop_judgement import REFERENCE_OF, assert_reference
from tests.support.marks import needs_float32
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy,
    assert_greedy_tokens_of_reference,
    backends,
    checked_drafts,
    run_greedy,
    scenario,
    text_prompts,
)
from tests.support.stages import (
    STAGES,
    K,
    assert_both_give_states,
    judged_head_on_both_stages,
    judged_stage_in_between,
)
from tests.support.tiny_models import model_directory


@pytest.mark.core(cases=["draft_model-FULL_DECODE_ONLY"])
@pytest.mark.host("0.23", cases=["eagle-None", "mtp-FULL_DECODE_ONLY"])
@pytest.mark.host("0.30", cases=["draft_model-FULL_DECODE_ONLY"])
@pytest.mark.nightly(
    "other cases of it stay", cases=["draft_model-None", "eagle-FULL_DECODE_ONLY", "mtp-None"]
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


@pytest.mark.core(cases=["eagle3-FULL_DECODE_ONLY"])
@pytest.mark.host("0.23", cases=["eagle3-FULL_DECODE_ONLY"])
@pytest.mark.nightly("other cases of it stay", cases=["*-FULL_AND_PIECEWISE", "*-None", "dflash-*"])
@needs_float32
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
@pytest.mark.parametrize("method", ["eagle3", "dflash"])
def test_heads_on_hidden_states_of_layers_of_both_stages(method, graphs):
    result = judged_head_on_both_stages(method, graphs, {})
    assert engine.replayed(result.log) == (graphs is not None)


@pytest.mark.core
def test_a_draft_has_all_its_layers_however_the_targets_are_shared_out(monkeypatch):
    shares = distributed_utils.get_pp_indices
    monkeypatch.setattr(parallel_state, "_PP", SimpleNamespace(world_size=2, rank_in_group=1))
    with pipeline.whole():
        group = parallel_state.get_pp_group()
        # Models of vLLM's Transformers backend call the function that they have imported.
        assert shares(2, group.rank_in_group, group.world_size) == (0, 2)
    monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", "1,3")
    assert distributed_utils.get_pp_indices(4, 1, 2) == (1, 4)
    with pipeline.whole():
        group = parallel_state.get_pp_group()
        shared_out = distributed_utils.get_pp_indices(2, group.rank_in_group, group.world_size)
    assert shared_out == (0, 2)
    assert parallel_state.get_pp_group().world_size == 2
    assert distributed_utils.get_pp_indices(4, 1, 2) == (1, 4)


@pytest.mark.nightly("near to tests that stay")
def test_more_requests_than_two_batches_hold():
    """In graphs, behind prefix hits, with layers of the target shared out by hand."""
    case = scenario(
        "gemma3",
        "gemma3",
        environment={"VLLM_PP_LAYER_PARTITION": "1,3"},
        engine={**STAGES, "max_num_seqs": 3, "max_num_batched_tokens": 64},
        graphs="FULL_DECODE_ONLY",
        record_drafts=False,
        speculative={"method": "draft_model"},
        repeats=2,
    )
    result = run_greedy(case)
    # A model that drafts for itself is always right.
    assert result.accepted_per_position == [result.num_drafts] * K
    assert sum(result.cached_tokens) > 0
    assert result.draft_replays > 0


@pytest.mark.nightly("near to tests that stay")
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
    same_target = model_directory(REFERENCE_OF["deepseek_v3_mtp"])
    assert_greedy(same_target, case.prompts, result.tokens, case.max_tokens)
    assert result.num_accepted > 0.2 * result.num_draft_tokens
    assert "Asynchronous scheduling is off: with a draft over pipeline stages" in result.log


@pytest.mark.nightly("near to tests that stay")
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
    result = run_greedy(case)
    assert 0 < result.num_accepted < result.num_draft_tokens


@pytest.mark.nightly("near to tests that stay")
@needs_float32
def test_a_stage_in_between_sends_on_what_it_was_sent():
    assert engine.replayed(judged_stage_in_between({}).log)


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize("preempted", [False, True], ids=["prefix hits", "preemption"])
def test_a_head_on_hidden_states_of_a_part_of_the_tokens(preempted):
    """In graphs. A stage sends no states of tokens that a hit skips, and all of them once more
    after preemption."""
    target, head = model_directory("gpt_oss"), model_directory("gpt_oss_eagle3")
    prompts = text_prompts(target)
    case = scenario(
        "gpt_oss",
        "gpt_oss_eagle3",
        # In blocks of 128 tokens: a request that crosses into its second one, or whole ones to hit.
        prompts=prompts[:6] if preempted else [one for one in prompts if len(one) > 128],
        engine={**STAGES, "max_num_batched_tokens": 64},
        graphs="FULL_DECODE_ONLY",
        speculative={"method": "eagle3"},
        repeats=1 if preempted else 2,
        force_preemption=preempted,
    )
    result = engine.run(case)
    assert_both_give_states(result.log)
    assert_greedy_tokens_of_reference(case, result)
    assert (
        checked_drafts(speculation.DraftHead(head, target).rows, result.proposals)
        == K * len(result.proposals)
        > 50
    )
    assert 0.15 * result.num_drafts < result.accepted_per_position[0] < result.num_drafts
    assert result.draft_replays > 0
    assert (result.preemptions > 0) == preempted
    assert (max(result.cached_tokens) >= 128) == (not preempted), result.cached_tokens


@pytest.mark.host("0.23")
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
