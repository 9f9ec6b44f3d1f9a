# SPDX-License-Identifier: Apache-2.0
"""Model runner V2 where ranks share the keys of each sequence (decode context parallelism).

With asynchronous scheduling, vLLM's default, a worker notes what was drafted.
"""

from __future__ import annotations

import pytest

from tests.support import engine, hosts
from tests.support.loop_judgement import assert_reference
from tests.support.marks import needs_float32
from tests.support.pairs import (
    assert_greedy_tokens_of_reference,
    prompts_of,
    scenario,
)
from tests.support.shares import (
    IN_GRAPHS,
    LENGTHS,
    ONE_KEY_HEAD,
    RANKS,
    WITH_SPARSE_MTP,
    judged,
    judged_of_three,
    judged_on_decks,
    judged_with_mtp,
    of_a_head,
)
from tests.support.stock import RUNNER_V2

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")
IN_CHUNKS = {**RANKS, "max_num_batched_tokens": 64, "max_num_seqs": 6}
ASYNCHRONOUS = {**IN_CHUNKS, "async_scheduling": True, "max_num_batched_tokens": 192}
TOO_SMALL = {**ASYNCHRONOUS, "max_num_batched_tokens": 512, "num_gpu_blocks_override": 9}
"""A cache in which six requests that go beyond 256 tokens at once do not fit."""
GRAPHS = [
    pytest.param({}, id="eager"),
    pytest.param(IN_GRAPHS, id="graphs"),
    pytest.param({**IN_GRAPHS, "graphs": "FULL_AND_PIECEWISE", "traced": True}, id="default"),
]
each_mode = pytest.mark.parametrize("graphs", GRAPHS)


def ran(target, draft, **fields):
    values = {"prompts": prompts_of(target, LENGTHS), "max_tokens": 20, "engine": IN_CHUNKS}
    case = scenario(target, draft, environment=RUNNER_V2, **{**values, **fields})
    return case, engine.run(case)


@pytest.mark.core
@pytest.mark.nightly("other cases of it stay", cases=["eager"])
@pytest.mark.parametrize("graphs", GRAPHS[:2])
def test_a_dense_draft_for_mla(graphs):
    case, result = ran("deepseek_v2_target", ONE_KEY_HEAD, **graphs)
    judged(case, result)
    assert bool(result.draft_replays) == bool(graphs)
    assert len(result.proposals) > 40


@pytest.mark.nightly("other cases of it stay", cases=["eager", "graphs"])
@each_mode
def test_a_head_of_mla_behind_prefix_hits(graphs):
    """The layer of DeepSeek-V3 that drafts for it (method mtp)."""
    case, result = of_a_head(
        environment=RUNNER_V2, max_tokens=14, repeats=2, engine=ASYNCHRONOUS, **graphs
    )
    judged_with_mtp(case, result)
    assert bool(result.draft_replays) == bool(graphs)
    assert max(result.cached_tokens) == 256, "a block of 128 keys on each of two ranks"


def test_letters_that_a_head_of_mla_drafts_need_every_key():
    result = judged_on_decks(environment=RUNNER_V2, engine=ASYNCHRONOUS, **IN_GRAPHS)
    assert result.draft_replays > 5


def test_a_head_of_sparse_mla_behind_prefix_hits():
    """The layer of DeepSeek-V3.2: of its indexer each rank keeps all keys."""
    case, result = of_a_head(
        WITH_SPARSE_MTP,
        environment=RUNNER_V2,
        max_tokens=14,
        repeats=2,
        engine=ASYNCHRONOUS,
        **IN_GRAPHS,
    )
    judged_with_mtp(case, result, WITH_SPARSE_MTP)
    assert result.draft_replays > 5
    assert max(result.cached_tokens) == 256, "a block of 128 keys on each of two ranks"


@pytest.mark.nightly("other cases of it stay", cases=["*-eager", "*-llama_one_key_head-*"])
@pytest.mark.parametrize("graphs", GRAPHS[:2])
@pytest.mark.parametrize(
    ("method", "target", "head"),
    [
        ("eagle", ONE_KEY_HEAD, "one_key_head_eagle"),
        ("eagle3", ONE_KEY_HEAD, "one_key_head_eagle3"),
        ("eagle3", "deepseek_v2_target", "deepseek_v2_one_key_eagle3"),
    ],
)
def test_dense_heads_behind_prefix_hits(method, target, head, graphs):
    case, result = ran(
        target,
        head,
        prompts=prompts_of(target, [5, 130, 261]),
        speculative={"method": method},
        max_tokens=14,
        repeats=2,
        engine=ASYNCHRONOUS,
        **graphs,
    )
    assert_greedy_tokens_of_reference(case, result)
    assert judged_of_three(result, head, target) > 60
    assert result.mean_acceptance_length > 1.3
    assert bool(result.draft_replays) == bool(graphs)
    assert max(result.cached_tokens) == 256


@pytest.mark.nightly("other cases of it stay", cases=["*-eager", "deepseek_v2_target-*"])
@pytest.mark.parametrize("graphs", GRAPHS[:2])
@pytest.mark.parametrize("target", ["deepseek_v2_target", ONE_KEY_HEAD])
def test_a_draft_of_mla(target, graphs):
    """By stretches of half a block."""
    case, result = ran(
        target,
        "deepseek_v2_draft",
        engine={**ASYNCHRONOUS, "cp_kv_cache_interleave_size": 64},
        **graphs,
    )
    judged(case, result)
    assert result.mean_acceptance_length > 2
    assert bool(result.draft_replays) == bool(graphs)


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize("interleave", [1, 128])
def test_preempted_requests_of_a_head_of_mla(interleave):
    """A block of two ranks holds 256 tokens of a request, which then needs a second one."""
    case, result = of_a_head(
        prompts=prompts_of("deepseek_v3_mtp", [250, 248, 246, 245, 244, 243]),
        environment=RUNNER_V2,
        max_tokens=20,
        engine={**TOO_SMALL, "cp_kv_cache_interleave_size": interleave},
        **IN_GRAPHS,
    )
    judged_with_mtp(case, result)
    assert result.preemptions > 0
    assert result.draft_replays > 5


@pytest.mark.nightly("near to tests that stay")
def test_a_model_that_drafts_for_itself_is_always_accepted_and_hits_prefixes():
    case, result = ran(
        ONE_KEY_HEAD, ONE_KEY_HEAD, repeats=2, max_tokens=21, engine=ASYNCHRONOUS, **IN_GRAPHS
    )
    judged(case, result)
    assert max(result.cached_tokens) == 256, "a block of 128 keys on each of two ranks"
    assert result.mean_acceptance_length == case.num_speculative_tokens + 1


ALL_KEYS = {"kv_cache": {"replicate_draft": True}}
"""Each rank keeps all keys of a draft that could do with its share."""


@pytest.mark.nightly("other cases of it stay", cases=["deepseek_v2_target"])
@pytest.mark.parametrize("target", ["deepseek_v2_target", ONE_KEY_HEAD])
def test_a_draft_with_windows_of_which_each_rank_keeps_all_keys(target):
    """By stretches of a block beside the dense target; preempted."""
    case, result = ran(
        target,
        "gemma3_one_key_draft",
        prompts=prompts_of(target, [250, 248, 246, 245, 244, 243]),
        engine={
            **TOO_SMALL,
            "cp_kv_cache_interleave_size": 128 if target == ONE_KEY_HEAD else 1,
        },
        **IN_GRAPHS,
    )
    judged(case, result)
    assert result.mean_acceptance_length > 1.8
    assert result.draft_replays > 5
    assert result.preemptions > 0


@pytest.mark.nightly("near to tests that stay")
@needs_float32
@pytest.mark.parametrize("graphs", GRAPHS[:2])
def test_mask_tokens_of_which_each_rank_keeps_all_keys(graphs):
    """Method dflash: each mask token sees those behind it."""
    draft = "deepseek_v2_one_key_dflash"
    result = assert_reference(
        "deepseek_v2_target", draft, "dflash", 3, RUNNER_V2, engine=RANKS, **graphs
    )
    assert bool(result.draft_replays) == bool(graphs)


@pytest.mark.nightly("near to tests that stay")
def test_a_draft_of_which_each_rank_is_asked_to_keep_all_keys_behind_prefix_hits():
    case, result = ran(
        "deepseek_v2_target",
        ONE_KEY_HEAD,
        repeats=2,
        mkv_ascend=ALL_KEYS,
        engine={**ASYNCHRONOUS, "cp_kv_cache_interleave_size": 64},
    )
    judged(case, result)
    assert result.mean_acceptance_length > 1.8
    assert max(result.cached_tokens) == 256


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize(
    ("method", "head"), [("eagle", "one_key_head_eagle"), ("eagle3", "one_key_head_eagle3")]
)
def test_a_head_of_which_each_rank_is_asked_to_keep_all_keys(method, head):
    case, result = ran(
        ONE_KEY_HEAD,
        head,
        speculative={"method": method},
        mkv_ascend=ALL_KEYS,
        engine=ASYNCHRONOUS,
        **IN_GRAPHS,
    )
    assert_greedy_tokens_of_reference(case, result)
    assert judged_of_three(result, head, ONE_KEY_HEAD) > 60
    assert result.draft_replays > 5
