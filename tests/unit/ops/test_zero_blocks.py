# SPDX-License-Identifier: Apache-2.0
"""``zero_blocks`` against plain loops, and what it refuses."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.ops.zero_blocks import page_table, zero_blocks
from tests.support.ops.batches import seeded, some


@some
@given(
    data=st.data(),
    caches=st.lists(
        st.tuples(
            st.integers(0, 9),
            st.sampled_from([(), (3,), (2, 5)]),
            st.integers(0, 7),
            st.sampled_from((torch.int8, torch.bfloat16, torch.float32)),
        ),
        min_size=1,
        max_size=4,
    ),
    dtype=st.sampled_from((torch.int32, torch.int64)),
)
def test_as_plain_loops(data: st.DataObject, caches: list[Any], dtype: torch.dtype) -> None:
    block_ids = data.draw(st.lists(st.integers(-1, 10), max_size=6, unique=True))
    pools, views = [], []
    for blocks, inner, gap, item in caches:
        size = torch.Size(inner).numel()
        pool = torch.randint(1, 100, (blocks, size + gap), generator=seeded(1)).to(item)
        pools.append(pool)
        views.append(pool[:, gap:].view(blocks, *inner) if inner else pool[:, gap])
    wanted = [pool.clone() for pool in pools]
    for pool, (blocks, _inner, gap, _item) in zip(wanted, caches, strict=True):
        for block in block_ids:
            if 0 <= block < blocks:
                pool[block, gap:] = 0
    zero_blocks(torch.tensor(block_ids, dtype=dtype), views, page_table(views))
    for got, expected in zip(pools, wanted, strict=True):
        assert got.tolist() == expected.tolist()


def arguments(**changes: Any) -> dict[str, Any]:
    caches = [torch.ones((3, 2, 4)), torch.ones((5, 8), dtype=torch.int8)]
    right: dict[str, Any] = {
        "block_ids": torch.tensor([2, -1]),
        "caches": caches,
        "page_table": page_table(caches),
    }
    return right | changes


WRONG: list[tuple[str, Any, str]] = [
    ("block_ids", torch.zeros(3), "block_ids is float32"),
    ("block_ids", torch.zeros((1, 3), dtype=torch.int32), "block_ids has the shape"),
    ("caches", [torch.ones((3, 2))], r"page_table has the shape \(2, 4\); it must be \(1, 4\)"),
    ("caches", [torch.ones((3, 2)), torch.ones(())], r"caches\[1\] has the shape \(\)"),
    ("caches", [torch.ones((3, 2)), torch.ones((3, 4, 2)).mT], r"caches\[1\] has the strides"),
    ("page_table", torch.zeros((2, 4)), "page_table is float32"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_wrong_arguments_are_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"mkv_ascend::zero_blocks: {message}"):
        zero_blocks(**arguments(**{name: value}))


def test_page_table() -> None:
    pool = torch.zeros((3, 10), dtype=torch.float32)
    assert page_table([pool[:, 2:6]]).tolist() == [[pool.data_ptr() + 8, 40, 16, 3]]
    with pytest.raises(ValueError, match="caches is empty"):
        page_table([])
    with pytest.raises(ValueError, match=r"caches\[0\] .*each block dense"):
        page_table([torch.zeros((3, 4, 2)).mT])


def test_opcheck() -> None:
    torch.library.opcheck(torch.ops.mkv_ascend.zero_blocks.default, tuple(arguments().values()))
