# SPDX-License-Identifier: Apache-2.0
"""Blocks of a draft's states in the scheduler's manager; no engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm_ascend.ops  # First of vllm_ascend, or its imports go in a circle.
import vllm_ascend.patch.platform  # noqa: F401  Before specs are registered, as in an engine.
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.engine import core
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
)
from vllm.v1.request import Request

from mkv_ascend.adapters.common.patches.prefix_hits import DraftRecurrentSpec, leave_hits_to_others
from tests.support import hosts
from tests.support.caches.kv_configs import config, full, window

pytestmark = pytest.mark.core

K = 3
IN_FLIGHT = "max_num_batched_tokens" if hosts.NAME == "vllm_ascend_0_23" else "max_in_flight_tokens"
"""vLLM's word for how many tokens a manager may be asked to hold at once."""
MAX_LENGTH = 1000
"""No multiple of any block."""


@pytest.fixture(autouse=True)
def registered() -> None:
    register_all_kvcache_specs(config())
    init_none_hash(sha256)


def states(mode: str = "none", block_size: int = MAX_LENGTH) -> MambaSpec:
    return MambaSpec(
        block_size=block_size,
        shapes=((4, 8),),
        dtypes=(torch.float32,),
        mamba_cache_mode=mode,
        num_speculative_blocks=K,
    )


def groups_of(*specs: Any) -> KVCacheConfig:
    groups = [KVCacheGroupSpec([f"layer.{gid}"], spec) for gid, spec in enumerate(specs)]
    return KVCacheConfig(64, [], groups)


def manager_of(*specs: Any, caching: bool = True) -> KVCacheManager:
    """vLLM's manager as the engine core makes it."""
    engine = SimpleNamespace(
        cache_config=SimpleNamespace(
            enable_prefix_caching=caching,
            block_size=min(spec.block_size for spec in specs),
            hash_block_size=None,
            prefix_match_unit=None,
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        kv_transfer_config=None,
    )
    groups = groups_of(*specs)
    scheduled, hashed = core.resolve_kv_cache_block_sizes(groups, engine)
    manager = KVCacheManager(
        groups, MAX_LENGTH, scheduled, hashed, **{IN_FLIGHT: 512}, enable_caching=caching
    )
    manager.hashed = hashed  # type: ignore[attr-defined]
    return manager


def request(manager: KVCacheManager, name: str, tokens: int) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=list(range(tokens)),
        sampling_params=SamplingParams(max_tokens=8),
        pooling_params=None,
        block_hasher=get_request_block_hasher(manager.hashed, sha256),  # type: ignore[attr-defined]
    )


def begin(manager: KVCacheManager, asked: Request) -> int:
    """Schedule all of a request's prompt. Returns its hit in tokens."""
    manager.coordinator.new_step_starts()
    blocks, hit, *_ = manager.get_computed_blocks(asked)
    assert manager.allocate_slots(asked, asked.num_tokens - hit, hit, blocks) is not None
    asked.num_computed_tokens = asked.num_tokens
    return hit


@pytest.mark.parametrize(
    "of_target",
    [
        [full(block=128)],
        [full(block=64)],
        [full(block=128), full(block=256)],
        [full(block=128), window(tokens=64, block=128)],
        [window(tokens=64, block=128), full(block=128)],
        [full(block=256), window(tokens=64, block=128)],
    ],
    ids=lambda specs: " ".join(f"{type(spec).__name__[:4]}{spec.block_size}" for spec in specs),
)
def test_hits_are_as_without_the_states(of_target: list[Any]) -> None:
    """Requests of every length, first with nothing cached, then beside or after others."""
    beside, alone = manager_of(*of_target, states()), manager_of(*of_target)
    found = []
    for place, length in enumerate((700, 700, 513, 512, 385, 300, 128, 100)):
        hits = []
        for manager in (beside, alone):
            asked = request(manager, str(place), length)
            hits.append(begin(manager, asked))
            if place % 2:
                manager.free(asked)
        assert hits[0] == hits[1]
        found.append(hits[0])
    assert max(found) >= 512


def test_a_request_has_its_own_blocks_of_states_from_beginning_to_end() -> None:
    manager = manager_of(full(block=128), states())
    free = manager.block_pool.get_num_free_blocks()
    first, second = (request(manager, name, 300) for name in "ab")
    assert [begin(manager, first), begin(manager, second)] == [0, 256]
    own = [manager.get_block_ids(asked.request_id)[1] for asked in (first, second)]
    assert [len(ids) for ids in own] == [1 + K, 1 + K]
    assert not set(own[0]) & set(own[1])
    assert 0 not in own[0] + own[1]
    # Two blocks of keys are shared.
    assert manager.block_pool.get_num_free_blocks() == free - 2 * (1 + K) - 3 - 1
    for _ in range(200):
        second.append_output_token_ids(7)
        assert manager.allocate_slots(second, 1, num_lookahead_tokens=K) is not None
        second.num_computed_tokens += 1
    assert manager.get_block_ids("b")[1] == own[1]
    for asked in (first, second):
        manager.free(asked)
    assert manager.block_pool.get_num_free_blocks() == free


def test_a_request_waits_where_there_are_no_blocks_for_its_states() -> None:
    """And no longer: as many blocks are free as it takes, one fewer at first."""
    manager = manager_of(full(block=128), states())
    pool = manager.block_pool
    of_states, of_keys = 1 + K, 3
    held = pool.get_new_blocks(pool.get_num_free_blocks() - of_states - of_keys + 1)
    asked = request(manager, "a", 300)
    blocks, hit, *_ = manager.get_computed_blocks(asked)
    assert manager.allocate_slots(asked, 300, hit, blocks) is None
    pool.free_blocks(held[:1])
    assert manager.allocate_slots(asked, 300, hit, blocks) is not None
    assert pool.get_num_free_blocks() == 0


def test_states_of_the_target_keep_their_say() -> None:
    """With prefix caching they are kept at the ends of blocks."""
    both = groups_of(full(block=128), states("align", 128), states())
    assert leave_hits_to_others(both) == [128, 128]
    kinds = [type(group.kv_cache_spec) for group in both.kv_cache_groups]
    assert kinds == [FullAttentionSpec, MambaSpec, DraftRecurrentSpec]
    assert leave_hits_to_others(groups_of(full(block=128), states("align", 128))) == []


def test_without_prefix_caching_nothing_changes() -> None:
    manager = manager_of(full(block=128), states(), caching=False)
    spec = manager.kv_cache_config.kv_cache_groups[1].kv_cache_spec
    assert type(spec) is MambaSpec
    assert spec.block_size == MAX_LENGTH
