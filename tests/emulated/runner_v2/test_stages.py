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
from tests.support.models import grouped_model, shared_model
from tests.support.pairs import (
    TIES,
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    kv_groups,
    run_greedy,
    run_judged,
    scenario,
    text_prompts,
)
from tests.support.stages import (
    STAGES,
    K,
    judged_head_on_both_stages,
    judged_stage_in_between,
    judged_states,
)
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
    result = run_judged(case)
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
    result = run_greedy(case)
    # Both numbers of drafts occur, and a model that drafts for itself is always right.
    assert result.num_drafts < result.num_draft_tokens < K * result.num_drafts
    assert result.num_accepted == result.num_draft_tokens
    assert result.draft_replays > 0


# Recurrent states over pipeline stages of model runner V2, in target and draft.
#
# Each stage takes its own states back to the last accepted token. Those before the last one are
# sent how many tokens were accepted, and know it as many steps later as there are stages.

LIMITS = {"max_num_seqs": 4, "enable_prefix_caching": True}
FIRST_HAS_STATES_ALONE = {**RUNNER_V2, "VLLM_PP_LAYER_PARTITION": "1,2"}
LAST_HAS_KEYS_ALONE = {**RUNNER_V2, "VLLM_PP_LAYER_PARTITION": "2,1"}


def test_stages_with_states_alone_and_with_keys_alone():
    """In graphs, behind prefix hits, with a draft in two KV groups: a stage for each layer."""
    texts = text_prompts(model_directory("lfm2"))
    case = scenario(
        "lfm2",
        "gemma3_draft",
        # Whole blocks to hit, and prompts that begin beside requests that verify.
        prompts=[*[text for text in texts if len(text) > 128][:3], *texts[:2]],
        engine={**LIMITS, "pipeline_parallel_size": 3, "max_num_batched_tokens": 144},
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 8, 16),
        repeats=2,
        environment=RUNNER_V2,
    )
    result = judged_states(case)
    assert max(result.cached_tokens) >= 128, result.cached_tokens
    assert len(kv_groups(result, "draft")) == 2


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"])
@pytest.mark.parametrize(
    ("target", "draft", "environment"),
    [
        ("qwen3_next", "gemma3_draft", LAST_HAS_KEYS_ALONE),
        ("qwen3_5", "lfm2", RUNNER_V2),
        ("lfm2", "granite4", RUNNER_V2),
        ("llama_target", "qwen3_next_draft", RUNNER_V2),
    ],
)
def test_preempted_requests_begin_again(target, draft, environment, graphs):
    """Preempted while steps of them are under way. Some drafts have states of their own."""
    case = scenario(
        target,
        draft,
        prompts=text_prompts(model_directory(target))[:6],
        engine={
            **STAGES,
            "max_num_seqs": 4,
            "max_num_batched_tokens": 64,
            # Qwen3.5 sees images.
            "language_model_only": target == "qwen3_5",
        },
        force_preemption=True,
        graphs=graphs,
        capture_sizes=(4, 8, 16),
        environment=environment,
    )
    assert judged_states(case).preemptions > 0


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"])
@pytest.mark.parametrize("partition", ["1,2", "2,1"])
def test_mamba2_layers_go_back_over_all_that_is_refused(tmp_path, partition, graphs):
    """The first or the last stage has states alone; of random weights hardly a token is told."""
    target = grouped_model.make(tmp_path / "of_groups", "llama_draft")
    case = engine.Scenario(
        str(target),
        draft=str(model_directory("gemma3_draft")),
        num_speculative_tokens=K,
        prompts=text_prompts(target)[2:8],
        max_tokens=16,
        record_drafts=True,
        engine=STAGES,
        graphs=graphs,
        capture_sizes=(4, 8, 16),
        environment={**RUNNER_V2, "VLLM_PP_LAYER_PARTITION": partition},
    )
    result = engine.run(case)
    assert_drafts_are_the_drafts_own(case, result)
    assert len(result.proposals) > 5 * len(case.prompts)
    near_tie, _ = TIES[engine.compared_dtype()]

    def wrong(prepare):
        return shared_model.wrong_tokens(target, case.prompts, result.tokens, near_tie, prepare)

    assert not wrong(grouped_model.scan_in_one_chunk)
    # The judge notices.
    assert len(wrong(grouped_model.normalise_all_groups_together)) > 10


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize("graphs", [None, "FULL_DECODE_ONLY"])
@pytest.mark.parametrize("environment", [FIRST_HAS_STATES_ALONE, LAST_HAS_KEYS_ALONE])
def test_proposals_of_a_head_and_acceptance_are_the_references(environment, graphs):
    """Prompts in short chunks that overlap in the pipeline."""
    assert_reference(
        "qwen3_next_mtp", "qwen3_next_mtp", "mtp", K, environment, engine=STAGES, graphs=graphs
    )
