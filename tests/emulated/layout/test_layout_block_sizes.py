# SPDX-License-Identifier: Apache-2.0
"""Block sizes of each KV group, in the engine core's functions; no engine."""

from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # First of vllm_ascend, or its imports go in a circle.
import vllm_ascend.patch.platform  # noqa: F401  Before specs are registered, as in an engine.
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_utils import (
    BlockHashListWithBlockSize,
    generate_scheduler_kv_cache_config,
    make_block_hash_with_group_id,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.engine import core as engine_core
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec
from vllm_ascend.patch.platform.patch_kv_cache_coordinator import AscendHybridKVCacheCoordinator

from benchmarks.kv_layout import planned
from benchmarks.models import load_pair
from benchmarks.rows import REQUEST, ROWS
from benchmarks.stock_groups import spec_of
from mkv_ascend.layout.grouping import GroupingError
from mkv_ascend.layout.recipes import LayerFacts
from tests.support import hosts
from tests.support.caches.kv_configs import config, full, window

pytestmark = [pytest.mark.host("0.23"), pytest.mark.core]

kv_groups = hosts.module("kv_cache.kv_groups")
layer_facts = hosts.module("kv_cache.layer_facts")

MIB = 2**20
PLANNED = [
    row
    for row in ROWS
    if not any(layer.states for layer in load_pair(row.target, row.draft).layers)
]
SMALL_DRAFT = next(row for row in ROWS if row.name == "Llama-8B + gemma3-1b")


@pytest.fixture(autouse=True)
def registered():
    """vLLM's and our specs and functions, as an engine core has them."""
    register_all_kvcache_specs(config())


def pair_of(row):
    """Specs of the benchmark's layers, tied to their facts as a worker ties them."""
    specs = {}
    for layer in load_pair(row.target, row.draft).layers:
        spec = spec_of(layer)
        latent, rope = layer.rows if len(set(layer.rows)) == 2 else (None, None)
        layer_facts.tie(
            spec,
            LayerFacts(layer.name, layer.role, kernel_block=128, latent_dim=latent, rope_dim=rope),
        )
        specs[layer.name] = spec
    return specs


def long_requests(**options):
    return config(max_model_len=REQUEST.tokens, **options)


@pytest.mark.parametrize("row", PLANNED, ids=lambda row: row.name)
def test_the_engine_groups_as_the_benchmark_says(row):
    groups = kv_groups.merge_groups(long_requests(), pair_of(row))
    found = planned(load_pair(row.target, row.draft).needs(), REQUEST)
    assert len(groups) == found["groups"]
    page = kv_cache_utils._pool_bytes_per_block(groups)
    assert round(page / MIB, 1) == found["page_mib"]


def test_a_groups_specs_have_its_block_size_and_their_facts():
    specs = pair_of(SMALL_DRAFT)
    groups = kv_groups.merge_groups(long_requests(hash_block_size=256), specs)
    assert [group.kv_cache_spec.block_size for group in groups] == [256, 256]
    for group in groups:
        for name, spec in group.kv_cache_spec.kv_cache_specs.items():
            assert spec.block_size == group.kv_cache_spec.block_size
            assert layer_facts.tied_facts(spec) == layer_facts.tied_facts(specs[name])
            assert layer_facts.first_form(spec) is specs[name]
    again = {n: s for group in groups for n, s in kv_groups.specs_by_layer(group).items()}
    inputs = [kv_groups.inputs_to_plan(long_requests(), some) for some in (again, specs)]
    layers = [{layer.layout.layer: layer for layer in one.layers} for one in inputs]
    assert layers[0] == layers[1]


def test_scheduler_and_hashing_follow_the_groups():
    """As vLLM resolves them: hits are multiples of all blocks, hashes cover the smallest."""
    options = long_requests(hash_block_size=256)
    options.cache_config.block_size = 128
    specs = pair_of(SMALL_DRAFT)
    (whole,) = engine_core.get_kv_cache_configs(options, [specs], [8192 * MIB])
    scheduled = generate_scheduler_kv_cache_config([whole])
    assert resolve_kv_cache_block_sizes(scheduled, options) == (256, 256)
    bytes_per_page = sum(tensor.size for tensor in whole.kv_cache_tensors) // whole.num_blocks
    groups = kv_groups.merge_groups(options, specs)
    assert bytes_per_page == kv_cache_utils._pool_bytes_per_block(groups)


def test_blocks_are_multiples_of_the_hash():
    specs = pair_of(SMALL_DRAFT)
    hashed = kv_groups.merge_groups(long_requests(hash_block_size=256), specs)
    assert all(group.kv_cache_spec.block_size % 256 == 0 for group in hashed)
    with pytest.raises(GroupingError, match="none is a multiple of hash_block_size 96"):
        kv_groups.merge_groups(long_requests(hash_block_size=96), specs)


BLOCKS = 64
HASH = 128


def coordinator_with(specs, cached):
    """vllm-ascend's coordinator; ``cached``: for each group, which of its blocks are cached."""
    groups = [KVCacheGroupSpec([f"layer.{gid}"], spec) for gid, spec in enumerate(specs)]
    coordinator = AscendHybridKVCacheCoordinator(
        KVCacheConfig(BLOCKS, [], groups),
        max_model_len=4096,
        use_eagle=False,
        enable_caching=True,
        enable_kv_cache_events=False,
        dcp_world_size=1,
        pcp_world_size=1,
        hash_block_size=HASH,
        scheduler_block_size=max(spec.block_size for spec in specs),
    )
    hashes = [index.to_bytes(32, "big") for index in range(8)]
    for gid, (spec, indices) in enumerate(zip(specs, cached, strict=True)):
        own = BlockHashListWithBlockSize(hashes, HASH, spec.block_size)
        for index in indices:
            (block,) = coordinator.block_pool.get_new_blocks(1)
            found = make_block_hash_with_group_id(
                hashes[index] if spec.block_size == HASH else own[index], gid
            )
            if hasattr(block, "set_block_hash"):
                block.set_block_hash(found, (index + 1) * spec.block_size)
            else:
                block.block_hash = found
            coordinator.block_pool.cached_block_hash_to_block.insert(found, block)
    return coordinator, hashes


@pytest.mark.parametrize(
    ("specs", "cached", "hit"),
    [
        # The window has the third block alone: all must end there.
        (
            [full(8, block=128), full(2, block=128), window(tokens=128, block=128)],
            [range(6), range(6), [2]],
            384,
        ),
        # Two that look alike are found together; both are cut.
        (
            [
                full(8, block=128),
                full(2, block=128),
                full(2, block=128),
                window(tokens=128, block=128),
            ],
            [range(6), range(6), range(6), [2]],
            384,
        ),
        (
            [full(8, block=128), full(2, block=256), window(tokens=128, block=128)],
            [range(6), range(3), [1, 3]],
            512,
        ),
        (
            [full(8, block=128), full(2, block=512), window(tokens=128, block=256)],
            [range(8), range(2), [1]],
            512,
        ),
    ],
    ids=["unlike heads", "two alike", "unlike blocks", "three sizes"],
)
def test_no_group_is_handed_blocks_beyond_the_hit(specs, cached, hit):
    coordinator, hashes = coordinator_with(specs, cached)
    find = AscendHybridKVCacheCoordinator.find_longest_cache_hit
    blocks, length, *_ = coordinator.find_longest_cache_hit(hashes, 1024)
    assert length == hit
    assert [len(found) * spec.block_size for found, spec in zip(blocks, specs, strict=True)] == [
        hit
    ] * len(specs)
    if hosts.NAME == "vllm_ascend_0_23":  # 0.30.0rc2 cuts all groups itself
        stock, _ = find.__wrapped__(coordinator, hashes, 1024)
        assert len(stock[1]) * specs[1].block_size > hit, "vllm-ascend cuts all groups now"


@hosts.only_on("vllm_ascend_0_23", "0.30.0rc2 cuts all groups itself")
def test_compressed_groups_keep_what_the_coordinator_leaves_them():
    """A block of theirs has rows for more tokens than its size says."""
    cut = hosts.module("patches.prefix_hits").cut_to_the_hit
    compressed = AscendMLAAttentionSpec(
        block_size=128, num_kv_heads=1, head_size=576, dtype=torch.bfloat16, compress_ratio=4
    )
    coordinator = SimpleNamespace(
        attention_groups=[(full(8, block=128), [0], None), (compressed, [1], None)],
        _get_effective_block_size=lambda spec: spec.block_size,
    )
    (replacement,) = cut.functions.values()
    found = [["block"] * 6, ["block"] * 6]
    blocks, length = replacement(lambda *_: (found, 384), coordinator, [], 1024)
    assert ([len(group) for group in blocks], length) == ([3, 6], 384)
