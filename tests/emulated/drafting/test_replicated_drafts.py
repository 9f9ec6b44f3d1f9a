# SPDX-License-Identifier: Apache-2.0
"""Drafts of which each rank keeps all keys, where ranks share those of the target's.

So are drafted what vllm-ascend's attention cannot do over shares: windows, and tokens that see
those behind them. A block of such a draft has the tokens of all ranks' blocks with its id.
"""

import pytest

from tests.support import engine, hosts
from tests.support.loop_judgement import assert_reference
from tests.support.marks import needs_float32
from tests.support.pairs import kv_groups, prompts_of, scenario
from tests.support.shares import IN_GRAPHS, LENGTHS, ONE_KEY_HEAD, RANKS, judged

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
