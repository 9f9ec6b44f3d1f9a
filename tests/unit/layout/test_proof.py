# SPDX-License-Identifier: Apache-2.0
"""The proof that no two blocks share a byte, against pools whose bytes are all written down."""

from __future__ import annotations

import re
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mkv_ascend.layout.component import Storage
from mkv_ascend.layout.placement import PlacedLayer, Placement, Pool
from mkv_ascend.layout.proof import Clash, OverlapError, Run, find_clash, prove_pool, runs_of

MOST_BLOCKS = 9


def bytes_of(run: Run, num_blocks: int, block: int) -> set[tuple[int, int]]:
    start = run.start_per_block * num_blocks + run.start_bytes + block * run.stride
    return {(run.buffer, byte) for byte in range(start, start + run.length)}


def clashes(first: Run, second: Run, num_blocks: int, same_block: bool) -> bool:
    return any(
        bytes_of(first, num_blocks, block) & bytes_of(second, num_blocks, other)
        for block, other in product(range(num_blocks), repeat=2)
        if (block == other) == same_block
    )


def assert_real(first: Run, second: Run, clash: Clash, same_block: bool) -> None:
    assert 0 <= clash.first_block < clash.num_blocks
    assert 0 <= clash.second_block < clash.num_blocks
    assert (clash.first_block == clash.second_block) == same_block
    byte = (first.buffer, clash.byte)
    assert byte in bytes_of(first, clash.num_blocks, clash.first_block)
    assert byte in bytes_of(second, clash.num_blocks, clash.second_block)


runs = st.builds(
    Run,
    buffer=st.integers(0, 0),
    start_per_block=st.integers(0, 12),
    start_bytes=st.integers(0, 9),
    stride=st.integers(1, 9),
    length=st.integers(1, 9),
)


@settings(max_examples=800, deadline=None)
@given(runs, runs, st.booleans())
def test_a_clash_is_found_exactly_when_there_is_one(
    first: Run, second: Run, same_block: bool
) -> None:
    found = find_clash(first, second, same_block=same_block)
    if found is not None:
        assert_real(first, second, found, same_block)
        return
    for num_blocks in range(1, MOST_BLOCKS):
        assert not clashes(first, second, num_blocks, same_block)


def test_a_clash_of_many_blocks_is_found() -> None:
    # The second plane starts 1000 bytes of each block behind, and a fixed million: with few
    # blocks it does not reach.
    first = Run(0, 1_000, 0, 1_000, 1_000)
    second = Run(0, 0, 1_000_000, 1_000, 1_000)
    for one, other in ((first, second), (second, first)):
        found = find_clash(one, other)
        assert found is not None
        assert_real_numbers(one, other, found)
        assert found.num_blocks > 32


def test_a_clash_of_many_blocks_names_the_blocks_in_the_order_of_the_layers() -> None:
    # Block b of the first is block b - 100 of the second, never an earlier one of the first.
    first, second = Run(0, 0, 0, 10, 10), Run(0, 0, 1_000, 10, 10)
    for one, other in ((first, second), (second, first)):
        found = find_clash(one, other)
        assert found is not None
        assert_real_numbers(one, other, found)


def assert_real_numbers(first: Run, second: Run, clash: Clash) -> None:
    for run, block in ((first, clash.first_block), (second, clash.second_block)):
        start = run.start(clash.num_blocks, block)
        assert start <= clash.byte < start + run.length
        assert 0 <= block < clash.num_blocks
    assert clash.first_block != clash.second_block


def test_other_buffers_never_clash() -> None:
    assert find_clash(Run(0, 0, 0, 4, 4), Run(1, 0, 0, 2, 2)) is None
    assert find_clash(Run(0, 0, 0, 4, 4), Run(0, 0, 0, 2, 2)) is not None


@st.composite
def placements(draw: st.DrawFn, name: str) -> Placement:
    rows = draw(st.integers(1, 2))
    row_bytes = draw(st.integers(1, 4))
    row_stride = row_bytes + draw(st.integers(0, 2))
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
    return Pool(Storage.PLANAR, "a test", (draw(st.integers(8, 40)), 24), layers)


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


SENTENCE = re.compile(
    r"with (\d+) blocks, byte (\d+) of buffer (\d+) is in block (\d+) of (\S+) \((\w+)\) and in "
    r"block (\d+) of (\S+) \((\w+)\)"
)


@settings(max_examples=800, deadline=None)
@given(pools())
def test_a_pool_is_refused_exactly_when_it_is_unsound(pool: Pool) -> None:
    try:
        prove_pool(0, pool)
    except OverlapError as error:
        assert_named_bytes_are_shared(pool, str(error))
    else:
        for num_blocks in range(1, 7):
            assert sound(pool, num_blocks)


def assert_named_bytes_are_shared(pool: Pool, message: str) -> None:
    match = SENTENCE.search(message)
    if match is None:
        assert "leaves its buffer" in message
        assert not all(sound(pool, num_blocks) for num_blocks in range(1, 60))
        return
    num_blocks, byte, buffer, block, layer, part, other_block, other_layer, other = match.groups()
    if int(num_blocks) > 200:
        return
    named = {(f"{layer} {part}", int(block)), (f"{other_layer} {other}", int(other_block))}
    sharing = owners(pool, int(num_blocks))[int(buffer), int(byte)]
    assert named <= {(place, owner_block) for _, place, owner_block, _ in sharing}
    assert len(sharing) > 1


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
    with pytest.raises(OverlapError, match=r"block 0 of target\.0 \(k\) and in block 0 of draft"):
        prove_pool(0, two_layers(0, 0))


def test_a_row_with_a_gap_after_it_is_a_run_of_its_own() -> None:
    gapped = Placement("k", 0, 0, 4, 20, 2, 10, 6)
    assert [run.start_bytes for run in runs_of(gapped)] == [4, 14]
    assert len(runs_of(Placement("k", 0, 0, 0, 20, 2, 10, 10))) == 1


@pytest.mark.parametrize(
    ("start_per_block", "start_bytes", "stride"),
    [(5, 0, 4), (0, 5, 4), (0, 0, 9), (-1, 4, 4), (0, 4, -1), (0, -1, 4)],
)
def test_a_layer_may_not_leave_its_buffer(
    start_per_block: int, start_bytes: int, stride: int
) -> None:
    beyond = Placement("v", 0, start_per_block, start_bytes, stride, 1, 4, 4)
    pool = Pool(Storage.PLANAR, "a test", (8,), (PlacedLayer("target.0", 0, (beyond,)),))
    with pytest.raises(OverlapError, match=r"pool 3: v of target\.0 leaves its buffer of 8 bytes"):
        prove_pool(3, pool)


def test_an_overlay_is_of_its_own_layer_only() -> None:
    whole = Placement("row", 0, 0, 0, 8, 1, 8, 8, overlay=True)
    layers = (
        PlacedLayer("a", 0, (Placement("k", 0, 0, 0, 8, 1, 8, 8),)),
        PlacedLayer("b", 0, (whole,)),
    )
    with pytest.raises(OverlapError, match=r"of a \(k\) and in block 0 of b \(row\)"):
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
