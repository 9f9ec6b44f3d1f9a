# SPDX-License-Identifier: Apache-2.0
"""The proof that no two blocks share a byte, against pools whose bytes are all written down."""

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkv_ascend.layout import proof
from mkv_ascend.layout.component import Storage
from mkv_ascend.layout.pooling import PlacedLayer, Placement, Pool
from mkv_ascend.layout.proof import OverlapError, prove_pool


@st.composite
def placements(draw: st.DrawFn, name: str) -> Placement:
    rows = draw(st.integers(1, 2))
    row_bytes = draw(st.integers(1, 4))
    row_stride = row_bytes + draw(st.integers(-1, 2))
    return Placement(
        component=name,
        buffer=draw(st.integers(0, 1)),
        start_per_block=draw(st.integers(0, 8)),
        start_bytes=draw(st.integers(0, 4)),
        block_stride=draw(st.sampled_from([rows * row_stride, 4, 8])),
        rows=rows,
        row_stride=row_stride,
        row_bytes=row_bytes,
    )


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    count = draw(st.integers(1, 3))
    layers = tuple(
        PlacedLayer(
            f"layer.{index}",
            draw(st.integers(0, 1)),
            tuple(draw(placements(name)) for name in ("k", "v")[: draw(st.integers(1, 2))]),
        )
        for index in range(count)
    )
    return Pool(Storage.SPLIT, "a test", (draw(st.integers(8, 40)), 24), layers)


Owner = tuple[int, str, int, int]


def owners(pool: Pool, num_blocks: int) -> dict[tuple[int, int], list[Owner]]:
    """For each byte of each buffer the (group, place, block, row) that have it."""
    found: dict[tuple[int, int], list[Owner]] = {}
    for layer in pool.layers:
        for placement in layer.placements:
            for block, row in product(range(num_blocks), range(placement.rows)):
                start = (
                    placement.start_per_block * num_blocks
                    + placement.start_bytes
                    + block * placement.block_stride
                    + row * placement.row_stride
                )
                for byte in range(start, start + placement.row_bytes):
                    owner = (layer.group, f"{layer.layer} {placement.component}", block, row)
                    found.setdefault((placement.buffer, byte), []).append(owner)
    return found


def sound(pool: Pool, num_blocks: int) -> bool:
    for (buffer, byte), each in owners(pool, num_blocks).items():
        if not 0 <= byte < pool.buffers[buffer] * num_blocks:
            return False
        if len({block for _, _, block, _ in each}) > 1:
            return False
        groups = [group for group, _, _, _ in each]
        if len(groups) != len(set(groups)):
            return False
    return True


@settings(max_examples=2000, deadline=None)
@given(pools())
def test_a_pool_that_is_proven_is_sound(pool: Pool) -> None:
    try:
        prove_pool(0, pool)
    except OverlapError:
        return
    for num_blocks in range(1, 7):
        assert sound(pool, num_blocks)


@st.composite
def planes_of_equal_blocks(draw: st.DrawFn) -> Pool:
    """Layers in whole planes of 4 bytes: what sharing by size comes to."""
    layers = tuple(
        PlacedLayer(
            f"layer.{index}",
            draw(st.integers(0, 1)),
            tuple(
                Placement(name, 0, 4 * draw(st.integers(0, 2)), 0, 4, rows, 4 // rows, 4 // rows)
                for name in ("k", "v")[: draw(st.integers(1, 2))]
                for rows in (draw(st.sampled_from([1, 2, 4])),)
            ),
        )
        for index in range(draw(st.integers(1, 3)))
    )
    return Pool(Storage.SPLIT, "a test", (12,), layers)


@settings(max_examples=500, deadline=None)
@given(planes_of_equal_blocks())
def test_a_pool_of_equal_planes_is_refused_exactly_when_it_is_unsound(pool: Pool) -> None:
    is_sound = all(sound(pool, num_blocks) for num_blocks in range(1, 5))
    if is_sound:
        prove_pool(0, pool)
    else:
        with pytest.raises(OverlapError, match="share bytes of a block"):
            prove_pool(0, pool)


@st.composite
def rows_with_gaps(draw: st.DrawFn) -> Pool:
    """Layers in one plane of 24 bytes whose rows lie between each other's, or meet."""
    strides = draw(st.sampled_from([(5,), (6,), (4, 6)]))
    places = [
        (
            draw(st.integers(0, 1)),
            Placement(
                component="k",
                buffer=0,
                start_per_block=0,
                start_bytes=draw(st.integers(0, 9)),
                block_stride=24,
                rows=draw(st.integers(1, 3)),
                row_stride=draw(st.sampled_from(strides)),
                row_bytes=draw(st.integers(1, 2)),
            ),
        )
        for _ in range(draw(st.integers(2, 4)))
    ]
    layers = (
        PlacedLayer(f"layer.{index}", group, (place,))
        for index, (group, place) in enumerate(places)
    )
    return Pool(Storage.SPLIT, "a test", (24,), tuple(layers))


@settings(max_examples=1000, deadline=None)
@given(rows_with_gaps())
def test_rows_with_gaps_are_refused_exactly_where_they_meet(pool: Pool) -> None:
    if sound(pool, 2):
        prove_pool(0, pool)
    else:
        with pytest.raises(OverlapError, match="share bytes of a block"):
            prove_pool(0, pool)


def two_layers(first_group: int, second_group: int) -> Pool:
    """The same bytes for both layers."""
    placement = Placement("k", 0, 0, 0, 8, 1, 8, 8)
    layers = (
        PlacedLayer("target.0", first_group, (placement,)),
        PlacedLayer("draft.0", second_group, (placement,)),
    )
    return Pool(Storage.SPLIT, "a test", (8,), layers)


def test_only_layers_of_different_groups_share_a_block() -> None:
    prove_pool(0, two_layers(0, 1))
    with pytest.raises(OverlapError, match=r"k of target\.0 and k of draft\.0, both of KV group 0"):
        prove_pool(0, two_layers(0, 0))


@pytest.mark.parametrize(
    ("start_per_block", "start_bytes", "stride"),
    [(5, 0, 4), (0, 5, 4), (0, 0, 9), (-1, 4, 4), (0, 4, -1), (0, -1, 4)],
)
def test_a_layer_may_not_leave_its_buffer(
    start_per_block: int, start_bytes: int, stride: int
) -> None:
    beyond = Placement("v", 0, start_per_block, start_bytes, stride, 1, 4, 4)
    pool = Pool(Storage.SPLIT, "a test", (8,), (PlacedLayer("target.0", 0, (beyond,)),))
    with pytest.raises(
        OverlapError, match=r"pool 3: v of target\.0 leaves its (buffer of 8|block of -?\d+) bytes"
    ):
        prove_pool(3, pool)


def test_an_overlay_is_of_its_own_layer_only() -> None:
    whole = Placement("row", 0, 0, 0, 8, 1, 8, 8, overlay=True)
    layers = (
        PlacedLayer("a", 0, (Placement("k", 0, 0, 0, 8, 1, 8, 8),)),
        PlacedLayer("b", 0, (whole,)),
    )
    with pytest.raises(OverlapError, match="k of a and row of b, both of KV group 0"):
        prove_pool(0, Pool(Storage.PAGED, "a test", (8,), layers))


def test_views_on_purpose_may_overlay_the_same_block_but_no_other() -> None:
    def pool(row_bytes: int, overlay: bool) -> Pool:
        keys = Placement("indexer_k", 0, 0, 0, 8, 1, 8, 8)
        whole = Placement("row", 0, 0, 0, 8, 1, 8, row_bytes, overlay)
        return Pool(Storage.PAGED, "a test", (8,), (PlacedLayer("target.0", 0, (keys, whole)),))

    prove_pool(0, pool(8, overlay=True))
    with pytest.raises(OverlapError):
        prove_pool(0, pool(8, overlay=False))
    with pytest.raises(OverlapError):
        prove_pool(0, pool(9, overlay=True))


def test_components_that_are_apart_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thousand of them make two million pairs."""
    compared: list[object] = []
    monkeypatch.setattr(proof, "_are_overlays", lambda *pair: compared.append(pair))
    size, count = 4, 2000
    layers = tuple(
        PlacedLayer(
            f"layer.{number}",
            0,
            (Placement("k", 0, 0, size * number, size * count, 1, size, size),),
        )
        for number in range(count)
    )
    prove_pool(0, Pool(Storage.SPLIT, "a test", (size * count,), layers))
    assert compared == []


@pytest.mark.parametrize("start", [2, 5, 7])
def test_what_lies_behind_an_overlay_is_compared_with_what_it_lies_on(start: int) -> None:
    """The overlay ends before the bytes that a layer shares with the component below it."""
    below = Placement("k", 0, 0, 0, 8, 1, 8, 8)
    overlay = Placement("v", 0, 0, 1, 8, 1, 1, 1, overlay=True)
    other = Placement("k", 0, 0, start, 8, 1, 1, 1)
    layers = (PlacedLayer("layer.0", 0, (below, overlay)), PlacedLayer("layer.1", 0, (other,)))
    with pytest.raises(OverlapError, match=r"k of layer.0 and k of layer.1, both of KV group 0"):
        prove_pool(0, Pool(Storage.SPLIT, "a test", (8,), layers))
    # Blocks of two groups may share them: only one has a block at a time.
    layers = (layers[0], PlacedLayer("layer.1", 1, (other,)))
    prove_pool(0, Pool(Storage.SPLIT, "a test", (8,), layers))
