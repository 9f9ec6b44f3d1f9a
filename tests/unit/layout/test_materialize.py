# SPDX-License-Identifier: Apache-2.0
"""Tensors of bound plans: shapes, containers, alignment, and whose bytes they are."""

import dataclasses

import pytest
import torch

from mkv_ascend.layout.component import LayerLayout
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.materialize import Materialized, materialize
from mkv_ascend.layout.plan import TRANSFER_ALIGNMENT, CachePlan, make_plan
from mkv_ascend.layout.recipes import LayerFacts, dtype_name, layout_of
from tests.support.caches import specs
from tests.support.caches.layouts import keys_and_values, states

CPU = torch.device("cpu")
NUM_BLOCKS = 5


def small_hybrid() -> list[list[LayerLayout]]:
    """States, attention of the same sizes, a draft of others, pages, an indexer with its scales."""

    def facts(layer: str, role: Role = Role.TARGET) -> LayerFacts:
        return LayerFacts(layer, role)

    indexer = specs.AscendMLAAttentionSpec(
        16, 1, 32, dtype="int8", model_version="deepseek_v4", scale_dim=1, scale_dtype="float16"
    )
    hidden = specs.HiddenStateCacheSpec(16, 2, 8, page_size_padded=768)
    return [
        [states("s0", (3, 32), (4, 8, 32), block=16), states("s1", (3, 32), (4, 8, 32), block=16)],
        [
            keys_and_values("a0", 2, 32, block=16, kernel_block=8),
            keys_and_values("d0", 1, 24, 16, block=16, kernel_block=8, role=Role.DRAFT),
        ],
        [layout_of(indexer, dataclasses.replace(facts("i0"), full_indexer_view=True))],
        [layout_of(hidden, facts("h0"))],
    ]


def tensors_of(cache: object) -> list[torch.Tensor]:
    if isinstance(cache, torch.Tensor):
        return [cache]
    assert isinstance(cache, tuple | list)
    return list(cache)


def rows_of_block(plan: CachePlan, layer: str, part: int, block: int) -> slice:
    count = plan.bind(NUM_BLOCKS).views()[layer].views[part].rows_per_block
    return slice(block * count, (block + 1) * count)


def hybrid_in_pages() -> list[list[LayerLayout]]:
    """Keys and values in three kernel blocks beside a state whose page is smaller."""

    def page(layer: str, spec: object, kernel_block: int | None = None) -> LayerLayout:
        facts = LayerFacts(layer, Role.TARGET, kernel_block, takes_strides=True)
        return layout_of(spec, facts)

    attention = specs.FullAttentionSpec(24, 2, 32)
    state = specs.MambaSpec(
        24, ((3, 32), (4, 8, 32)), ("bfloat16", "float32"), attention.page_size_bytes
    )
    return [
        [page("s0", state), page("s1", state)],
        [page("a0", attention, 8), page("a1", attention, 8)],
    ]


def test_pages_of_states_and_of_split_blocks_share_their_bytes() -> None:
    groups = hybrid_in_pages()
    plan = make_plan(groups)
    page = 24 * 2 * 32 * 2 * 2
    assert groups[0][0].page_bytes < groups[1][0].page_bytes == page
    # Not of pages of each size: those of the states lie where those of the keys do.
    assert plan.bytes_per_block == 2 * page
    caches = materialize(plan.bind(NUM_BLOCKS), CPU).caches
    assert [tuple(part.shape) for part in tensors_of(caches["a0"])] == [(15, 8, 2, 32)] * 2
    assert not tensors_of(caches["s0"])[0].is_contiguous()


@pytest.mark.parametrize("kv_transfer", [False, True])
@pytest.mark.parametrize("groups", [small_hybrid(), hybrid_in_pages()], ids=["several", "pages"])
def test_filling_a_block_of_a_layer_touches_no_other_block(
    groups: list[list[LayerLayout]], kv_transfer: bool
) -> None:
    plan = make_plan(groups, kv_transfer=kv_transfer)
    made = materialize(plan.bind(NUM_BLOCKS), CPU)
    for layer, cache in made.caches.items():
        for block in range(NUM_BLOCKS):
            for raw in made.raw:
                assert raw is not None
                raw.zero_()
            for part, tensor in enumerate(tensors_of(cache)):
                tensor[rows_of_block(plan, layer, part, block)] = 1
            assert_untouched(plan, made, layer, block)


def assert_untouched(plan: CachePlan, made: Materialized, filled: str, block: int) -> None:
    for layer, cache in made.caches.items():
        same_group = plan.group_of[layer] == plan.group_of[filled]
        for part, tensor in enumerate(tensors_of(cache)):
            rest = tensor.clone()
            if layer == filled or not same_group:
                # Its own block; or the same block id, which is not the other group's then.
                rest[rows_of_block(plan, layer, part, block)] = 0
            assert not rest.any(), (filled, block, layer, part)


def test_each_byte_of_the_buffers_is_in_the_budget() -> None:
    plan = make_plan(small_hybrid())
    made = materialize(plan.bind(NUM_BLOCKS), CPU)
    sizes = [raw.numel() for raw in made.raw]
    assert sum(sizes) == plan.bind(NUM_BLOCKS).total_bytes
    storages = {
        tensor.untyped_storage().data_ptr()
        for cache in made.caches.values()
        for tensor in tensors_of(cache)
    }
    assert storages == {raw.untyped_storage().data_ptr() for raw in made.raw}


def test_containers_dtypes_and_shapes() -> None:
    made = materialize(make_plan(small_hybrid()).bind(NUM_BLOCKS), CPU)
    keys, values = made.caches["d0"]
    assert isinstance(made.caches["d0"], tuple)
    assert (keys.shape, keys.dtype) == ((10, 8, 1, 24), torch.bfloat16)
    assert (values.shape, values.is_contiguous()) == ((10, 8, 1, 16), True)
    assert isinstance(made.caches["s0"], list)
    conv, ssm = made.caches["s0"]
    assert (conv.shape, ssm.shape) == ((5, 3, 32), (5, 4, 8, 32))
    assert conv.is_contiguous()
    assert ssm.is_contiguous()
    hidden = made.caches["h0"]
    assert isinstance(hidden, torch.Tensor)
    assert (hidden.shape, hidden.stride(0)) == ((5, 16, 2, 8), 384)
    indexer, scales, whole = made.caches["i0"]
    assert scales.dtype is torch.float16
    indexer[2, :, 0, :] = 7
    assert whole[2].flatten()[: 16 * 32].eq(7).all()


def test_buffers_start_at_2_mib_where_kv_transfer_registers_them() -> None:
    """And are allocations of their own: connectors tell caches apart by their storage."""
    plan = make_plan(small_hybrid(), kv_transfer=True)
    made = materialize(plan.bind(3), CPU)
    for memory in made.raw:
        assert memory is not None
        assert memory.data_ptr() % TRANSFER_ALIGNMENT == 0
    groups = [[keys_and_values("a", 1, 48, 32, block=16, kernel_block=16)]]
    made = materialize(make_plan(groups, kv_transfer=True).bind(3), CPU)
    keys, values = tensors_of(made.caches["a"])
    assert keys.untyped_storage().data_ptr() != values.untyped_storage().data_ptr()
    assert keys.data_ptr() % TRANSFER_ALIGNMENT == values.data_ptr() % TRANSFER_ALIGNMENT == 0


def test_alignment_is_in_the_budget() -> None:
    plan = make_plan(small_hybrid(), kv_transfer=True)
    memory = 64 << 20
    num_blocks = plan.num_blocks_in(memory)
    for blocks, fits in ((num_blocks, True), (num_blocks + 1, False)):
        held = sum(
            raw.untyped_storage().nbytes()
            for raw in materialize(plan.bind(blocks), CPU).raw
            if raw is not None
        )
        assert (held <= memory) is fits


@pytest.mark.parametrize("kv_transfer", [False, True])
def test_planes_have_every_byte_of_every_block_once(kv_transfer: bool) -> None:
    plan = make_plan(small_hybrid(), kv_transfer=kv_transfer)
    made = materialize(plan.bind(NUM_BLOCKS), CPU)
    (planes,) = made.planes
    assert {plane.shape[0] for plane in planes} == {NUM_BLOCKS}
    assert sum(plane.shape[1] for plane in planes) == plan.bytes_per_block
    for plane in planes:
        plane[3] += 1
    for layer, cache in made.caches.items():
        for part, tensor in enumerate(tensors_of(cache)):
            rows = rows_of_block(plan, layer, part, 3)
            # A page that two views overlap is no tensor of one dtype: bytes alone count.
            assert as_bytes(tensor[rows]).eq(1).all(), layer
            rest = tensor.clone()
            rest[rows] = 0
            assert as_bytes(rest).eq(0).all(), layer


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(torch.int8)


@pytest.mark.parametrize("kv_transfer", [False, True])
def test_all_of_it_is_on_the_device_that_is_asked_for(kv_transfer: bool) -> None:
    """Here on none, where tensors have shapes alone."""
    plan = make_plan(small_hybrid(), kv_transfer=kv_transfer)
    made = materialize(plan.bind(NUM_BLOCKS), torch.device("meta"))
    caches = [tensor for cache in made.caches.values() for tensor in tensors_of(cache)]
    assert {tensor.device.type for tensor in (*caches, *made.raw, *made.planes[0])} == {"meta"}


def test_a_dtype_of_torch_is_that_of_its_name() -> None:
    assert dtype_name(torch.float8_e4m3fn) == dtype_name("float8_e4m3fn") == "float8_e4m3fn"


def test_an_alias_is_the_cache_of_its_owner() -> None:
    names = ("first", "owner", "last")
    groups = [[keys_and_values(name, 1, 16, block=16, kernel_block=16) for name in names]]
    made = materialize(make_plan(groups, aliases={"reader": "owner"}).bind(2), CPU)
    assert made.caches["reader"] is made.caches["owner"]
