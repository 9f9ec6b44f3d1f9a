# SPDX-License-Identifier: Apache-2.0
"""Drafts on model runner V2 of a target that is spread over pipeline stages, two of them.

vLLM schedules asynchronously there: a request's next step begins before the scheduler knows its
tokens. Stages take back what was rejected by themselves, the first one from what the last one sent
it two steps ago.
"""

import pytest

from tests.support import engine, hosts
from tests.support.loop_judgement import assert_reference
from tests.support.marks import needs_float32
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    kv_groups,
    scenario,
    text_prompts,
)
from tests.support.stages import STAGES, K, judged_head_on_both_stages, judged_stage_in_between
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")
pytestmark = needs_float32


@pytest.mark.core
@pytest.mark.nightly(
    "other cases of it stay",
    cases=["draft_model-None", "eagle-*", "embeddings-FULL_DECODE_ONLY", "mtp-*"],
)
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"])
@pytest.mark.parametrize(
    ("target", "draft", "method"),
    [
        pytest.param("gemma3", "gemma3_draft", "draft_model", id="draft_model"),
        pytest.param("deepseek_v3_mtp", "deepseek_v3_mtp", "mtp", id="mtp"),
        pytest.param("llama_target", "llama_eagle", "eagle", id="eagle"),
        # Its target's class has no second copy of the embeddings, and the head has none.
        pytest.param("deepseek_v2_target", "deepseek_v2_eagle3", "eagle3", id="embeddings"),
    ],
)
def test_tokens_proposals_and_acceptance_are_the_references(target, draft, method, graphs):
    """Prompts in chunks that overlap in the pipeline, blocks that are used again soon."""
    result = assert_reference(target, draft, method, K, RUNNER_V2, engine=STAGES, graphs=graphs)
    assert (result.draft_replays > 0) == (graphs is not None)


@pytest.mark.nightly("other cases of it stay", cases=["*-FULL_AND_PIECEWISE", "*-None", "eagle3-*"])
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE"])
@pytest.mark.parametrize("method", ["eagle3", "dflash"])
def test_heads_on_hidden_states_of_layers_of_both_stages(method, graphs):
    judged_head_on_both_stages(method, graphs, RUNNER_V2)


@pytest.mark.nightly("near to tests that stay")
def test_a_stage_in_between_sends_on_what_it_was_sent():
    assert judged_stage_in_between(RUNNER_V2).draft_replays > 0


@pytest.mark.nightly("near to tests that stay")
def test_more_requests_than_three_batches_hold():
    """In graphs, behind prefix hits."""
    case = scenario(
        "gemma3",
        "gemma3",
        engine={**STAGES, "max_num_seqs": 4, "max_num_batched_tokens": 64},
        graphs="FULL_DECODE_ONLY",
        repeats=2,
        environment=RUNNER_V2,
    )
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    # A model that drafts for itself is always right. Where a hit leaves one token of a prompt, vLLM
    # counts a proposal more: it lets that step verify placeholders.
    assert result.accepted_per_position == [len(result.proposals)] * K
    assert max(result.cached_tokens) >= 128, result.cached_tokens
    assert result.draft_replays > 0


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize("ranks", [1, 2], ids=["tp1", "tp2"])
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"], ids=["eager", "graphs"])
def test_a_preempted_request_goes_on(ranks, graphs):
    """Preempted while steps of it are under way: what first stages are sent of them is void."""
    case = scenario(
        "gemma3",
        "gemma3_draft",
        prompts=text_prompts(model_directory("gemma3"))[:6],
        engine={**STAGES, "tensor_parallel_size": ranks},
        force_preemption=True,
        graphs=graphs,
        environment=RUNNER_V2,
    )
    result = engine.run(case)
    assert result.preemptions > 0
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert 0.15 * result.num_drafts < result.accepted_per_position[0] < result.num_drafts
    assert (result.draft_replays > 0) == (graphs is not None)
    assert len(kv_groups(result, "draft")) == 2


@pytest.mark.nightly("near to tests that stay")
def test_k_by_batch_size():
    """In graphs: first stages are sent as many columns of drafts for every K."""
    case = scenario(
        "gemma3",
        "gemma3",
        engine={**STAGES, "max_num_seqs": 4, "max_num_batched_tokens": 64},
        graphs="FULL_DECODE_ONLY",
        record_drafts=False,
        speculative={"num_speculative_tokens_per_batch_size": [[1, 2, 3], [3, 8, 1]]},
        environment=RUNNER_V2,
    )
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    # Both numbers of drafts occur, and a model that drafts for itself is always right.
    assert result.num_drafts < result.num_draft_tokens < K * result.num_drafts
    assert result.num_accepted == result.num_draft_tokens
    assert result.draft_replays > 0
