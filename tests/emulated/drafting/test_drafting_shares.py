# SPDX-License-Identifier: Apache-2.0
"""Drafts where ranks share the keys of each sequence (decode context parallelism).

Each rank attends to its own keys, so a draft token is right only if every pass has the right keys,
lengths and masks on all ranks. Every draft token is judged, not the accepted ones alone.
"""

import dataclasses

import pytest

from tests.support import engine, hosts
from tests.support.loop_judgement import assert_reference
from tests.support.marks import needs_float32
from tests.support.pairs import (
    assert_drafted_in_parallel,
    kv_groups,
    prompts_of,
    run_greedy,
    scenario,
    with_config,
)
from tests.support.shares import (
    IN_GRAPHS,
    LENGTHS,
    ONE_KEY_HEAD,
    RANKS,
    WITH_MTP,
    judged,
    judged_of_three,
    judged_on_decks,
    judged_with_mtp,
    of_a_head,
)
from tests.support.stock import STOCK, each_runner

CAPTURED = hosts.NAME == "vllm_ascend_0_30"
"""Whether passes of such a draft are captured; 0.23.0 has masks that depend on positions."""


def with_a_draft_model(target, **fields):
    return scenario(
        target,
        ONE_KEY_HEAD,
        **{"prompts": prompts_of(target, LENGTHS), "max_tokens": 20, **fields},
    )


@pytest.mark.core
def test_a_head_of_mla_in_chunks_and_behind_prefix_hits():
    """Ranks keep every other token; drafting goes on from prompts, of which there are several."""
    case, result = of_a_head(
        max_tokens=14,
        repeats=2,
        engine={**RANKS, "max_num_batched_tokens": 192, "max_num_seqs": 4},
    )
    judged_with_mtp(case, result)
    assert max(result.cached_tokens) >= 256


def test_letters_that_a_head_of_mla_drafts_need_every_key():
    result = judged_on_decks(engine=RANKS, **IN_GRAPHS)
    assert (result.draft_replays > 5) == CAPTURED


@pytest.mark.parametrize(
    ("method", "target", "head"),
    [
        ("eagle", ONE_KEY_HEAD, "one_key_head_eagle"),
        ("eagle3", "deepseek_v2_target", "deepseek_v2_one_key_eagle3"),
    ],
)
def test_dense_heads_in_chunks_and_behind_prefix_hits(method, target, head):
    """On a dense target by stretches of half a block, and on one of MLA."""
    case = scenario(
        target,
        head,
        prompts=prompts_of(target, [5, 130, 261]),
        speculative={"method": method},
        max_tokens=14,
        repeats=2,
        engine={
            **RANKS,
            "cp_kv_cache_interleave_size": 64 if method == "eagle" else 1,
            "max_num_batched_tokens": 192,
            "max_num_seqs": 4,
        },
    )
    result = run_greedy(case)
    assert judged_of_three(result, head, target) > 60
    assert result.mean_acceptance_length > 1.3
    assert max(result.cached_tokens) >= 256


@pytest.mark.nightly("four workers take more than a minute")
@each_runner
@pytest.mark.parametrize("shares", [2, 4])
def test_four_ranks_of_which_two_or_all_share_keys(runner, shares):
    """A head of MLA; a block of four ranks holds 512 tokens of a request."""
    case, result = of_a_head(
        prompts=prompts_of(WITH_MTP, [5, 130, 261, 500, 505, 507]),
        environment=runner,
        max_tokens=20,
        engine={
            "tensor_parallel_size": 4,
            "decode_context_parallel_size": shares,
            "max_model_len": 640,
            "max_num_batched_tokens": 192,
        },
        **IN_GRAPHS,
    )
    judged_with_mtp(case, result)
    assert bool(result.draft_replays) == CAPTURED


@pytest.mark.nightly("four workers take more than a minute")
@each_runner
def test_four_ranks_of_which_two_share_keys_of_a_dense_model(runner):
    """Two ranks have one key head, and the other two the other; it drafts for itself."""
    case = scenario(
        "llama_target",
        "llama_target",
        prompts=prompts_of("llama_target", LENGTHS),
        environment=runner,
        max_tokens=20,
        engine={"tensor_parallel_size": 4, "decode_context_parallel_size": 2},
        **IN_GRAPHS,
    )
    result = engine.run(case)
    judged(case, result)
    assert result.mean_acceptance_length == case.num_speculative_tokens + 1
    assert bool(result.draft_replays) == CAPTURED


def test_a_draft_model_by_stretches_of_a_block():
    """A dense draft for an MLA target; ranks keep 128 tokens in turn."""
    target = "deepseek_v2_target"
    case = with_a_draft_model(
        target,
        engine={
            **RANKS,
            "cp_kv_cache_interleave_size": 128,
            "max_num_batched_tokens": 192,
            "max_num_seqs": 8,
        },
    )
    result = engine.run(case)
    judged(case, result)
    assert result.mean_acceptance_length > 1.8


@pytest.mark.nightly("other cases of it stay", cases=["1"])
@pytest.mark.parametrize("interleave", [1, 64])
def test_a_dense_model_drafting_for_itself_is_always_accepted(interleave):
    """Beside graphs of the target, on 0.30.0 in its own; preempted, too."""
    case = with_a_draft_model(
        ONE_KEY_HEAD,
        prompts=prompts_of(ONE_KEY_HEAD, [250, 248, 246, 245, 244, 243]),
        graphs="FULL_DECODE_ONLY",
        capture_sizes=(4, 8, 16, 24),
        # A block of two ranks holds 256 tokens of a request.
        engine={**RANKS, "cp_kv_cache_interleave_size": interleave, "num_gpu_blocks_override": 10},
    )
    result = engine.run(case)
    judged(case, result)
    assert result.preemptions > 0
    assert result.accepted_per_position == [result.num_drafts] * case.num_speculative_tokens
    if CAPTURED:
        assert result.draft_replays > 5
    else:
        assert "ranks share the keys of a sequence" in result.log, "why the draft is eager"
    assert engine.replayed(result.log)


@hosts.only_on("vllm_ascend_0_30", "0.23.0 drafts eagerly there")
def test_a_head_of_mla_in_graphs():
    """Two launches of a layer in the first pass, and one in each later one."""
    case, result = of_a_head(max_tokens=16, repeats=2, engine=RANKS, **IN_GRAPHS)
    judged_with_mtp(case, result)
    assert result.draft_replays > 5


@pytest.mark.nightly("a dense draft for MLA stays, and heads of MLA in graphs")
@hosts.only_on("vllm_ascend_0_30", "0.23.0 drafts eagerly there")
def test_a_draft_model_for_mla_in_graphs():
    """Its first pass has a row more than a verify step, and most of its tokens are rejected."""
    case = with_a_draft_model(
        "deepseek_v2_target", engine={**RANKS, "cp_kv_cache_interleave_size": 64}, **IN_GRAPHS
    )
    result = engine.run(case)
    judged(case, result)
    assert result.mean_acceptance_length > 1.8
    assert result.draft_replays > 5


@pytest.mark.nightly(
    "other cases of it stay", cases=["*-deepseek_v2_draft", "llama_one_key_head-*"]
)
@pytest.mark.parametrize(
    ("target", "of"),
    [
        ("deepseek_v2_target", ONE_KEY_HEAD),
        (ONE_KEY_HEAD, ONE_KEY_HEAD),
        ("deepseek_v2_target", "deepseek_v2_draft"),
    ],
)
def test_tokens_drafted_in_parallel(target, of, tmp_path):
    """In one pass, whose rows of masks write keys as well; chunks of prompts are eager.

    Not trained for it, the draft is poor; its tokens must be its own all the same.
    """
    mask = 5
    draft = with_config(of, tmp_path, pard_token=mask)
    case = with_a_draft_model(
        target,
        speculative={"parallel_drafting": True},
        engine={**RANKS, "max_num_batched_tokens": 192, "max_num_seqs": 8},
        **IN_GRAPHS,
    )
    case = dataclasses.replace(case, draft=draft)
    result = run_greedy(case)
    assert len(result.proposals) > 60
    assert_drafted_in_parallel(draft, mask, result, case.num_speculative_tokens)
    if CAPTURED:
        assert result.draft_replays > 5


@pytest.mark.nightly("other pairs run with vLLM's default, which it is")
def test_asynchronous_scheduling():
    """The host does not know which tokens were rejected when the next step is prepared."""
    case = with_a_draft_model(
        "deepseek_v2_target", record_drafts=False, engine={**RANKS, "async_scheduling": True}
    )
    synchronous = engine.run(with_a_draft_model("deepseek_v2_target", engine=RANKS))
    result = run_greedy(case)
    assert result.accepted_per_position == synchronous.accepted_per_position


@pytest.mark.nightly("a draft is given up without context parallelism in tests that stay")
def test_a_draft_that_is_given_up():
    case = with_a_draft_model(
        "deepseek_v2_target",
        record_drafts=False,
        judged_after=8,
        mkv_ascend={"drafting": {"give_up_below": 0.99}},
        engine=RANKS,
    )
    result = run_greedy(case)
    assert 0 < result.num_drafts < 40


@pytest.mark.nightly("stock alone, which changes when a host does")
@hosts.only_on("vllm_ascend_0_23", "0.30.0 takes later passes for decodes")
def test_stock_cannot_go_on_from_a_prompt_with_an_mla_head():
    """Its later passes are prefills to its builder, and then it looks for their decodes."""
    with pytest.raises(engine.EngineFailedError, match="no attribute 'cp_seq_len'"):
        of_a_head(environment=STOCK, engine={**RANKS, "max_num_batched_tokens": 2048})


# Drafts of which each rank keeps all keys, where ranks share those of the target's.
#
# So are drafted what vllm-ascend's attention cannot do over shares: windows, and tokens that see
# those behind them. A block of such a draft has the tokens of all ranks' blocks with its id.

WINDOWED = "gemma3_one_key_draft"
"""A layer with a window of 64 tokens and a full one."""


def with_windows(target, **fields):
    return scenario(
        target,
        WINDOWED,
        **{"prompts": prompts_of(target, LENGTHS), "max_tokens": 20, **IN_GRAPHS, **fields},
    )


def test_windows_beside_mla_in_chunks_behind_prefix_hits_and_in_graphs():
    """Both layers lie in the target's KV group, of which a rank has every other token."""
    case = with_windows(
        "deepseek_v2_target",
        repeats=2,
        engine={**RANKS, "max_num_batched_tokens": 192, "max_num_seqs": 8},
    )
    result = engine.run(case)
    judged(case, result)
    assert result.mean_acceptance_length > 1.8
    assert result.draft_replays > 5
    assert max(result.cached_tokens) >= 256
    assert kv_groups(result, "draft") == kv_groups(result, "target") == {0}


@pytest.mark.nightly("windows of one block stay")
def test_windows_beside_a_dense_target_by_stretches_of_a_block_and_preempted():
    case = with_windows(
        ONE_KEY_HEAD,
        prompts=prompts_of(ONE_KEY_HEAD, [250, 248, 246, 245, 244, 243]),
        engine={**RANKS, "cp_kv_cache_interleave_size": 128, "num_gpu_blocks_override": 10},
    )
    result = engine.run(case)
    judged(case, result)
    assert result.preemptions > 0
    assert result.draft_replays > 5


DSPARK = pytest.param(
    "dspark",
    IN_GRAPHS,
    id="dspark-graphs",
    marks=hosts.only_on("vllm_ascend_0_30", "vLLM 0.23.0 knows no method dspark"),
)


@pytest.mark.nightly("other cases of it stay", cases=["*-eager"])
@needs_float32
@pytest.mark.parametrize(
    ("method", "graphs"),
    [
        pytest.param("dflash", {}, id="dflash-eager"),
        pytest.param("dflash", IN_GRAPHS, id="dflash-graphs"),
        DSPARK,
    ],
)
def test_tokens_that_see_those_behind_them(method, graphs):
    """The context's keys are written on each rank, and read by all mask tokens."""
    head = f"deepseek_v2_one_key_{method}"
    result = assert_reference("deepseek_v2_target", head, method, 3, engine=RANKS, **graphs)
    assert bool(result.draft_replays) is bool(graphs)


def test_a_draft_model_of_which_each_rank_is_asked_to_keep_all_keys():
    """It could do with its share; so its passes are captured where masks of shares are not."""
    case = scenario(
        "deepseek_v2_target",
        ONE_KEY_HEAD,
        prompts=prompts_of("deepseek_v2_target", LENGTHS),
        max_tokens=20,
        mkv_ascend={"kv_cache": {"replicate_draft": True}},
        engine={**RANKS, "cp_kv_cache_interleave_size": 64},
        **IN_GRAPHS,
    )
    result = engine.run(case)
    judged(case, result)
    assert result.mean_acceptance_length > 1.8
    assert result.draft_replays > 5
