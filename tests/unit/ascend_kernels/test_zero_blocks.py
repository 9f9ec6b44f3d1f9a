# SPDX-License-Identifier: Apache-2.0
"""``zero_blocks`` as an AscendC kernel: as plain loops, without a problem, few bytes moved."""

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mkv_ascend.ops import zero_blocks
from tests.unit.ascend_kernels import launches
from tests.unit.ascend_kernels.kernels import examples

pytestmark = pytest.mark.packaging

HALF = torch.bfloat16
CORES = st.sampled_from((1, 2, 7, 40))


@examples
@given(
    ids=st.lists(st.integers(-1, 10), max_size=6, unique=True),
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
@example(
    ids=[2, -1, 0, 10, 8],
    caches=[(3, (70_001,), 5, torch.int8), (9, (), 0, torch.float32), (9, (33_000,), 1, HALF)],
    dtype=torch.int64, cores=1, seed=0,
)  # fmt: skip
@example(
    ids=[8, 7, 1, 0], caches=[(9, (2, 5), 3, torch.int8), (2, (33_000,), 0, torch.float32)],
    dtype=torch.int32, cores=7, seed=1,
)  # fmt: skip
def test_zero_blocks(
    ids: list[int],
    caches: list[tuple[int, tuple[int, ...], int, torch.dtype]],
    dtype: torch.dtype,
    cores: int,
    seed: int,
) -> None:
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
