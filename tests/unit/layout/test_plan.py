# SPDX-License-Identifier: Apache-2.0
"""Plans: sharing, binding, refusals."""

import dataclasses
import math
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkv_ascend.layout.component import (
    ONE_BLOCK,
    Component,
    Container,
    LayerLayout,
    LayoutError,
    StateExtent,
    Storage,
    TokenExtent,
    dtype_bytes,
)
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.plan import TRANSFER_ALIGNMENT, CachePlan, make_plan
from mkv_ascend.layout.pooling import PlacedLayer, Placement, Pool, page_bytes
from mkv_ascend.layout.proof import OverlapError, prove_pool
from tests.support.caches.layouts import CONV_BYTES, MIB, keys_and_values, qwen3_next, states


def buffers_of(plan: CachePlan) -> dict[str, list[int]]:
    """Which buffers the components of each layer lie in."""
    views = plan.bind(1).views()
    return {name: [view.buffer for view in layer.views] for name, layer in views.items()}


def test_components_of_one_group_have_a_buffer_each() -> None:
    plan = make_plan([[keys_and_values("a"), keys_and_values("b")]])
    assert [pool.buffers for pool in plan.pools] == [(262144,) * 4]
    assert buffers_of(plan) == {"a": [0, 1], "b": [2, 3]}
    assert plan.bytes_per_block == 4 * 262144


def test_layers_of_different_groups_share_buffers() -> None:
    plan = make_plan([[keys_and_values("a"), keys_and_values("b")], [keys_and_values("c")]])
    assert buffers_of(plan) == {"a": [0, 1], "b": [2, 3], "c": [0, 1]}
    assert plan.tied_layers() == [(2 * 262144, ["b"]), (2 * 262144, ["a", "c"])]


def test_other_sizes_have_planes_of_their_own() -> None:
    plan = make_plan([[keys_and_values("a", 8, 128)], [keys_and_values("b", 4, 64)]])
    assert buffers_of(plan) == {"a": [2, 3], "b": [0, 1]}
    assert plan.bytes_per_block == (8 * 128 + 4 * 64) * 2 * 128 * 2


def test_a_layer_takes_planes_of_several_layers() -> None:
    """Two layers with one plane each, in the other group one layer with both."""
    one, two = (states(name, (16,), (32,)) for name in ("one", "two"))
    one = dataclasses.replace(one, components=one.components[:1], page_bytes=32)
    two = dataclasses.replace(two, components=two.components[1:], page_bytes=64)
    plan = make_plan([[one, two], [states("both", (16,), (32,))]])
    assert plan.bytes_per_block == 32 + 64
    assert buffers_of(plan) == {"one": [0], "two": [1], "both": [0, 1]}
    assert plan.tied_layers() == [(32 + 64, ["one", "two", "both"])]


def test_states_and_attention_share_planes() -> None:
    plan = make_plan(qwen3_next())
    # Twelve attention layers have 24 planes of 1 MiB; twelve states of a group use half of them.
    assert plan.bytes_per_block == 24 * MIB + 12 * CONV_BYTES
    attention = plan.capacity()[3]
    assert (attention.used_bytes, attention.idle_bytes) == (24 * MIB, 12 * CONV_BYTES)
    assert plan.capacity()[0].idle_bytes == 12 * MIB


def test_pages_share_by_size_where_operators_take_strides() -> None:
    def layer(name: str, heads: int) -> LayerLayout:
        return keys_and_values(name, heads, storage=Storage.PAGED)

    groups = [[layer("a", 8), layer("b", 4)], [layer("c", 2)], [layer("d", 8), layer("e", 8)]]
    plan = make_plan(groups)
    assert plan.bytes_per_block == (8 + 8 + 4 + 2) * 128 * 128 * 4
    shared = buffers_of(plan)
    assert shared == {"a": [2, 2], "b": [1, 1], "c": [0, 0], "d": [2, 2], "e": [3, 3]}
    views = plan.bind(2).views()
    assert views["b"].views[1].offset_bytes == 4 * 128 * 128 * 2
    assert views["b"].views[0].strides[0] == 4 * 128 * 128 * 4 // 2


@pytest.mark.parametrize("kv_transfer", [False, True])
def test_sizes_and_starts_of_buffers(kv_transfer: bool) -> None:
    groups = [[keys_and_values("a", 3, 192, 128), keys_and_values("b", 1, 64)]]
    plan = make_plan(groups, kv_transfer=kv_transfer)
    assert plan.alignment == (TRANSFER_ALIGNMENT if kv_transfer else 512)
    for num_blocks in (1, 7, 1000):
        bound = plan.bind(num_blocks)
        sizes = {
            view.buffer: math.prod(view.shape) * dtype_bytes(view.dtype)
            for layer in bound.views().values()
            for view in layer.views
        }
        assert sizes == dict(enumerate(bound.buffers))
        assert bound.total_bytes == sum(sizes.values()) == num_blocks * plan.bytes_per_block
    assert plan.overhead_bytes == 4 * plan.alignment


def test_number_of_blocks_that_fit() -> None:
    plan = make_plan([[keys_and_values("a")]])
    aligned = make_plan([[keys_and_values("a")]], kv_transfer=True)
    memory = 10 * plan.bytes_per_block
    for some, more in ((plan, 0), (aligned, aligned.overhead_bytes)):
        assert some.num_blocks_in(memory + more) == 10
        assert some.num_blocks_in(memory + more - 1) == 9
    assert plan.num_blocks_in(0) == 0
    with pytest.raises(LayoutError, match="0 blocks; a plan needs at least 1"):
        plan.bind(0)


def test_a_plan_is_a_value() -> None:
    plan, again = (make_plan(qwen3_next(), kv_transfer=True) for _ in range(2))
    assert plan == again
    assert len({plan, again}) == 1
    assert plan != make_plan(qwen3_next())
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.alignment = 1  # type: ignore[misc]


def changed(value: Any, path: tuple[str | int, ...], new: object) -> Any:
    """``value`` with another value at ``path``: names of fields, indices of tuples."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    if isinstance(step, int):
        return (*value[:step], changed(value[step], rest, new), *value[step + 1 :])
    return dataclasses.replace(value, **{step: changed(getattr(value, step), rest, new)})


START = ("pools", 0, "layers", 0, "placements", 1)


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("groups",), (), "not exactly once in the KV groups: \\['a', 'b'\\]"),
        (("groups", 0, "tokens_per_block"), 64, "blocks of 64 tokens, a of 128"),
        (("groups", 0, "kernel_block"), 64, "splits blocks into 64 rows, a into 128"),
        ((*START, "buffer"), 0, "k of a and v of a, both of KV group 0, share bytes of a block"),
        ((*START, "start_bytes"), 4, "v of a leaves its block"),
        (("aliases",), (("a", "b"),), "a is to read the cache of b"),
        (("aliases",), (("c", "d"),), "c is to read the cache of d"),
    ],
)
def test_a_wrong_plan_cannot_be_made(path: tuple[str | int, ...], value: object, said: str) -> None:
    plan = make_plan([[keys_and_values("a"), keys_and_values("b")]])
    with pytest.raises(ValueError, match=said):
        changed(plan, path, value)


def test_a_group_shares_its_block_size_and_kernel_block() -> None:
    with pytest.raises(LayoutError, match=r"KV group 0 has blocks of 128 tokens, b of 256; give"):
        make_plan([[keys_and_values("a"), keys_and_values("b", block=256)]])
    with pytest.raises(LayoutError, match="one block table cannot serve both"):
        make_plan([[keys_and_values("a"), keys_and_values("b", kernel_block=64)]])
    with pytest.raises(LayoutError, match="a KV group without layers"):
        make_plan([[]])
    with pytest.raises(LayoutError, match=r"not exactly once in the KV groups: \['a'\]"):
        make_plan([[keys_and_values("a")], [keys_and_values("a")]])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"page_bytes": 100}, "need 524288 bytes of a block, its page has 100"),
        ({"kernel_block": 100}, "128 is not a multiple of 100"),
        ({"tokens_per_block": 0}, "0 tokens per block; must be positive"),
        ({"container": Container.TENSOR}, r"\['k', 'v'\] in one tensor"),
        ({"components": ()}, "at least one"),
        (
            {"storage": Storage.PAGED, "page_bytes": 524289, "kernel_block": 64},
            "524289 is not a multiple of 2",
        ),
    ],
)
def test_layouts_that_cannot_be(change: dict[str, object], said: str) -> None:
    with pytest.raises(LayoutError, match=f"layer a: .*{said}"):
        dataclasses.replace(keys_and_values("a"), **change)


def test_components_that_cannot_be() -> None:
    with pytest.raises(LayoutError, match="tokens 0, heads 8, dim 128"):
        TokenExtent(0, 8, 128)
    with pytest.raises(LayoutError, match=r"state shape \(3, 0\)"):
        StateExtent((3, 0))
    with pytest.raises(LayoutError, match="k: 0 replicas"):
        Component("k", "int8", StateExtent((3,)), replicas=0)
    with pytest.raises(LayoutError, match="'float12' is not known; known: int8"):
        Component("k", "float12", StateExtent((3,)))
    copies = Component("k", "int8", StateExtent((4,)), replicas=2)
    with pytest.raises(LayoutError, match="k has replicas; it must be contiguous"):
        LayerLayout("a", Role.TARGET, Kind.MAMBA, (copies,), Storage.PAGED, 8, 1)


small = st.integers(1, 3)


@st.composite
def small_layouts(draw: st.DrawFn, name: str) -> LayerLayout:
    storage = draw(st.sampled_from(Storage))
    splits = draw(st.integers(1, 2))
    parts: list[Component] = []
    for index in range(draw(st.integers(1, 3))):
        extent: TokenExtent | StateExtent = TokenExtent(2, draw(small), draw(small))
        if splits == 1 and draw(st.booleans()):
            extent = StateExtent((draw(small), draw(small)))
        replicas = 1 if storage.is_strided else draw(st.integers(1, 2))
        parts.append(Component(f"part_{index}", "int8", extent, replicas))
    used = sum(part.bytes_per_block for part in parts)
    padding = 2 * draw(small) if storage is Storage.PAGED else 0
    return LayerLayout(
        name,
        Role.TARGET,
        Kind.MAMBA,
        tuple(parts),
        storage,
        used + padding,
        2,
        2 // splits if splits == 2 else None,
    )


@st.composite
def small_groups(draw: st.DrawFn) -> list[list[LayerLayout]]:
    groups = [
        [draw(small_layouts(f"{group}.{index}")) for index in range(draw(st.integers(1, 3)))]
        for group in range(draw(st.integers(1, 3)))
    ]
    return [
        split_alike(
            [
                layout
                for layout in group
                if layout.kernel_block in (None, group[0].kernel_block or layout.kernel_block)
            ]
        )
        for group in groups
    ]


def split_alike(group: list[LayerLayout]) -> list[LayerLayout]:
    """``group`` without packed layers that split blocks in another way than the first of them."""
    packed = [layout for layout in group if layout.storage is Storage.PACKED]
    return [x for x in group if x not in packed or x.kernel_splits == packed[0].kernel_splits]


Bytes = set[tuple[int, int]]


def block_bytes(plan: CachePlan, num_blocks: int) -> dict[tuple[int, int], list[tuple[str, Bytes]]]:
    """By (group, block), the layers' bytes as (buffer, byte) pairs, from the bound views only."""
    found: dict[tuple[int, int], list[tuple[str, Bytes]]] = {}
    for name, layer in plan.bind(num_blocks).views().items():
        for block, view in product(range(num_blocks), layer.views):
            rows = range(block * view.rows_per_block, (block + 1) * view.rows_per_block)
            inner = product(*(range(size) for size in view.shape[1:]))
            places = {
                (
                    view.buffer,
                    view.offset_bytes + sum(map(int.__mul__, (row, *index), view.strides)),
                )
                for row, index in product(rows, list(inner))
            }
            found.setdefault((plan.group_of[name], block), []).append((name, places))
    return found


@settings(max_examples=150, deadline=None)
@given(small_groups())
def test_sound_plans_are_made_and_are_sound(groups: list[list[LayerLayout]]) -> None:
    plan = make_plan(groups)
    assert plan.bytes_per_block == page_bytes(groups, (ONE_BLOCK,) * len(groups))
    for num_blocks in (1, 2, 3):
        bound = plan.bind(num_blocks)
        by_block = block_bytes(plan, num_blocks)
        for (group, block), members in by_block.items():
            everything = [place for _, places in members for place in places]
            assert len(everything) == len(set(everything)), (group, block)
            assert all(0 <= byte < bound.buffers[buffer] for buffer, byte in everything)
        owners: dict[tuple[int, int], int] = {}
        for (_, block), members in by_block.items():
            for place in set().union(*(places for _, places in members)):
                assert owners.setdefault(place, block) == block


@settings(max_examples=150, deadline=None)
@given(small_groups())
def test_no_group_has_planes_to_spare(groups: list[list[LayerLayout]]) -> None:
    """As many planes of each size as the group with the most of them has."""
    pools = [pool for pool in make_plan(groups).pools if pool.storage is not Storage.PACKED]
    most: dict[int, int] = {}
    for group in groups:
        sizes = [
            part.bytes_per_block
            for layout in group
            if not layout.storage.is_strided
            for part in layout.components
        ]
        sizes += [layout.page_bytes for layout in group if layout.storage is Storage.PAGED]
        for size in set(sizes):
            most[size] = max(most.get(size, 0), sizes.count(size))
    expected = sum(size * count for size, count in most.items())
    assert sum(pool.bytes_per_block for pool in pools) == expected


def test_bug_2_each_layer_of_a_pool_is_cut_by_its_own_sizes() -> None:
    """Pages of equal size, keys and values not: stock cuts both by the first layer's ratio."""
    full = keys_and_values("full", 8, 192, 64)
    window = keys_and_values("window", 8, 128, 128)
    assert full.page_bytes == window.page_bytes
    plan = make_plan([[full], [window]])
    views = plan.bind(10).views()
    assert [view.shape[-1] for view in views["full"].views] == [192, 64]
    assert [view.shape[-1] for view in views["window"].views] == [128, 128]
    # Contiguous components of other sizes cannot share bytes: a buffer each.
    (pool,) = plan.pools
    assert len(pool.buffers) == 4


def stock_hybrid_pool(num_draft_heads: int, dim: int) -> Pool:
    """A page of 2 MiB and a convolution, as stock shares it: keys and values are at its end."""
    page = CONV_BYTES + 2 * MIB

    def attention(layer: str, group: int, plane: int) -> PlacedLayer:
        rows = plane // 8
        keys = Placement("k", 0, page - 2 * plane, 0, plane, 8, rows, rows)
        values = Placement("v", 0, page - plane, 0, plane, 8, rows, rows)
        return PlacedLayer(layer, group, (keys, values))

    conv = Placement("conv", 0, 0, 0, CONV_BYTES, 1, CONV_BYTES, CONV_BYTES)
    ssm = Placement("ssm", 0, CONV_BYTES, 0, MIB, 1, MIB, MIB)
    layers = (
        PlacedLayer("model.layers.0", 0, (conv, ssm)),
        attention("model.layers.3", 1, MIB),
        attention("draft.layers.0", 2, num_draft_heads * dim * 1024 * 2),
    )
    return Pool(Storage.SPLIT, "as stock does", (page,), layers)


def test_bug_7_blocks_of_a_draft_overlap_other_blocks_of_the_target() -> None:
    # 4 heads of 128 have keys of 1 MiB, as large as the target's and its recurrent state: sound.
    prove_pool(0, stock_hybrid_pool(4, 128))
    # Those of 2 heads lie among the target's values, which are twice as large: block 1 of the
    # draft is in the second half of block 0 of the target.
    with pytest.raises(OverlapError) as refusal:
        prove_pool(0, stock_hybrid_pool(2, 128))
    first = CONV_BYTES + MIB
    assert (
        f"blocks of k of draft.layers.0 (bytes {first} to {first + MIB // 2} per block) and "
        f"v of model.layers.3 (bytes {first} to {first + MIB} per block) share bytes of buffer 0; "
        "give these layers pools of their own"
    ) in str(refusal.value)

    draft = keys_and_values("draft.layers.0", 2, 128, block=1024, role=Role.DRAFT)
    groups = qwen3_next()
    plan = make_plan([*groups[:3], [*groups[3], draft]])
    assert plan.bytes_per_block == 24 * MIB + 12 * CONV_BYTES + draft.page_bytes
