# SPDX-License-Identifier: Apache-2.0
"""The kernels that move bytes of caches: as the reference, without a problem, few bytes moved."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.ops import paged_scatter, zero_blocks
from tests.unit.ascend_kernels import launches
from tests.unit.ops.batches import BLOCK_SIZES, as_bytes, random_bytes, seeded, some, spread

CORES = st.sampled_from((1, 2, 7, 40))
DTYPES = (torch.bfloat16, torch.float32, torch.int8, torch.int64)


@some
@given(
    data=st.data(),
    tokens=st.sampled_from((0, 1, 6, 39, 41, 600)),
    block_size=st.sampled_from(BLOCK_SIZES),
    gaps=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    cores=CORES,
    seed=st.integers(0, 2**31),
)
def test_paged_scatter(
    data: st.DataObject,
    tokens: int,
    block_size: int,
    gaps: tuple[int, int],
    cores: int,
    seed: int,
) -> None:
    """Scattered and neighbouring slots, skipped tokens, gaps between rows, tokens and pages."""
    generator = seeded(seed)
    num_blocks = -(-tokens // block_size) + 1
    capacity = num_blocks * block_size
    components = data.draw(
        st.lists(
            st.tuples(st.sampled_from(DTYPES), st.sampled_from([(), (1,), (5,), (2, 64), (0,)])),
            min_size=1,
            max_size=4,
        )
    )
    if data.draw(st.booleans()):
        slots = torch.arange(capacity, dtype=torch.int32)[-tokens:] if tokens else torch.arange(0)
    else:
        slots = torch.randperm(capacity + 3, generator=generator)[:tokens]
    skipped = torch.rand(slots.shape, generator=generator) < data.draw(st.sampled_from([0, 0.4, 1]))
    slots = torch.where(skipped, -1, slots).to(torch.int32)
    rows = [
        random_bytes(generator, (slots.shape[0], 1 + gaps[0], *inner), dtype)[:, 0]
        for dtype, inner in components
    ]
    caches = [
        spread(generator, (num_blocks, block_size, *inner), dtype, gaps[1:])
        for dtype, inner in components
    ]
    wanted = [cache.clone() for cache in caches]
    paged_scatter.reference(rows, slots, wanted)
    report = launches.paged_scatter(rows, slots, caches, cores=cores, seed=seed)
    report.require_clean()
    for got, cache in zip(caches, wanted, strict=True):
        assert as_bytes(got) == as_bytes(cache)


@pytest.mark.parametrize("elements", [16384, 8192 + 77, 40_000])
def test_paged_scatter_of_rows_longer_than_a_buffer(elements: int) -> None:
    rows = [torch.randn((3, elements))]
    caches = [torch.zeros((2, 2, elements))]
    slots = torch.tensor([3, -1, 0], dtype=torch.int32)
    launches.paged_scatter(rows, slots, caches, cores=2).require_clean()
    assert torch.equal(caches[0][1, 1], rows[0][0])
    assert torch.equal(caches[0][0, 0], rows[0][2])
    assert not caches[0][0, 1].any()


def test_paged_scatter_of_more_slots_than_a_core_holds() -> None:
    """Two whole tiles of slots on one core, and a token."""
    tokens = 2 * 512 + 1
    rows = [torch.arange(tokens, dtype=torch.int32)[:, None]]
    caches = [torch.zeros((9, 128, 1), dtype=torch.int32)]
    slots = torch.randperm(9 * 128, generator=seeded(5))[:tokens].int()
    launches.paged_scatter(rows, slots, caches, cores=1).require_clean()
    assert torch.equal(caches[0].view(-1, 1)[slots.long()], rows[0])


def test_paged_scatter_of_an_expanded_tensor() -> None:
    rows = [torch.arange(8.0).expand(5, 8)]
    caches = [torch.zeros((2, 4, 8))]
    slots = torch.tensor([0, 1, 2, 5, 7], dtype=torch.int32)
    launches.paged_scatter(rows, slots, caches, cores=1).require_clean()
    assert torch.equal(caches[0].view(8, 8)[slots.long()], rows[0])


@pytest.mark.parametrize("tokens", [40, 256, 2048])
def test_paged_scatter_moves_little_more_than_it_must(tokens: int) -> None:
    """Rows of 4 KiB (goal: 1.25 times the least), spread over 40 cores (goal: 1.2)."""
    rows = [torch.zeros((tokens, 8, 256), dtype=torch.bfloat16) for _ in range(2)]
    caches = [torch.zeros((tokens // 64 + 1, 128, 8, 256), dtype=torch.bfloat16) for _ in range(2)]
    slots = torch.randperm(caches[0].shape[0] * 128, generator=seeded(1))[:tokens].int()
    report = launches.paged_scatter(rows, slots, caches, cores=40)
    report.require_clean()
    assert report.total("cost_bytes") < 1.01 * (tokens * 4096 * 2 * 2 + tokens * 4)
    work = [core.cost_bytes for core in report.cores]
    assert max(work) / (sum(work) / len(work)) < 1.2


@some
@given(
    data=st.data(),
    caches=st.lists(
        st.tuples(
            st.integers(1, 9),
            st.sampled_from([(), (3,), (2, 5), (33_000,), (70_001,)]),
            st.integers(0, 7),
            st.sampled_from((torch.int8, torch.bfloat16, torch.float32)),
        ),
        min_size=1,
        max_size=4,
    ),
    dtype=st.sampled_from((torch.int32, torch.int64)),
    cores=CORES,
    seed=st.integers(0, 2**31),
)
def test_zero_blocks(
    data: st.DataObject,
    caches: list[tuple[int, tuple[int, ...], int, torch.dtype]],
    dtype: torch.dtype,
    cores: int,
    seed: int,
) -> None:
    ids = data.draw(st.lists(st.integers(-1, 10), max_size=6, unique=True))
    pools, views = [], []
    for blocks, inner, gap, item in caches:
        size = torch.Size(inner).numel()
        pool = torch.ones((blocks, size + gap), dtype=item)
        pools.append(pool)
        views.append(pool[:, gap:].view(blocks, *inner) if inner else pool[:, gap])
    wanted = [pool.clone() for pool in pools]
    for pool, (blocks, inner, gap, _) in zip(wanted, caches, strict=True):
        for block in ids:
            if 0 <= block < blocks:
                pool[block, gap : gap + torch.Size(inner).numel()] = 0
    table = zero_blocks.page_table(views)
    block_ids = torch.tensor(ids, dtype=dtype)
    report = launches.zero_blocks(block_ids, views, table, cores=cores, seed=seed)
    report.require_clean()
    for got, expected in zip(pools, wanted, strict=True):
        assert torch.equal(got, expected)


def test_zero_blocks_moves_what_it_must() -> None:
    """Blocks of 128 rows of 4 KiB over 40 cores: no byte twice, none read but the ids."""
    caches = [torch.ones((9, 128, 4096), dtype=torch.int8) for _ in range(4)]
    ids = torch.tensor([8, 1, 3, 4, 7])
    table = zero_blocks.page_table(caches)
    report = launches.zero_blocks(ids, caches, table, cores=40)
    report.require_clean()
    assert report.total("write_cost") == 5 * 4 * 128 * 4096
    assert report.total("read_cost") < 0.01 * report.total("write_cost")
    work = [core.cost_bytes for core in report.cores]
    assert max(work) / (sum(work) / len(work)) < 1.2
