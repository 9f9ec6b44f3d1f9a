# SPDX-License-Identifier: Apache-2.0
"""``paged_scatter`` against plain loops, byte for byte, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.ops.paged_scatter import paged_scatter
from tests.unit.ops.batches import BLOCK_SIZES, as_bytes, random_bytes, seeded, some, spread

DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.int64)


@some
@given(
    data=st.data(),
    tokens=st.integers(0, 12),
    block_size=st.sampled_from(BLOCK_SIZES),
    num_blocks=st.integers(1, 4),
    gaps=st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)),
    seed=st.integers(0, 2**31),
)
def test_as_plain_loops(
    data: st.DataObject,
    tokens: int,
    block_size: int,
    num_blocks: int,
    gaps: tuple[int, int, int],
    seed: int,
) -> None:
    generator = seeded(seed)
    components = data.draw(
        st.lists(
            st.tuples(st.sampled_from(DTYPES), st.sampled_from([(), (1,), (5,), (2, 3)])),
            min_size=1,
            max_size=4,
        )
    )
    capacity = num_blocks * block_size
    slots = torch.randperm(capacity + 3, generator=generator)[:tokens].to(torch.int32)
    skipped = torch.rand(slots.shape, generator=generator) < data.draw(st.sampled_from([0, 0.4, 1]))
    slots = torch.where(skipped, -1, slots)
    # Rows narrowed from wider ones lie apart; pages narrowed from longer ones too.
    rows = [
        random_bytes(generator, (slots.shape[0], 1 + gaps[0], *inner), dtype)[:, 0]
        for dtype, inner in components
    ]
    caches = [
        spread(generator, (num_blocks, block_size, *inner), dtype, gaps[1:2])
        for dtype, inner in components
    ]
    wanted = [cache.clone() for cache in caches]
    for row, cache in zip(rows, wanted, strict=True):
        for token, slot in enumerate(slots.tolist()):
            if 0 <= slot < capacity:
                cache[slot // block_size, slot % block_size] = row[token]
    paged_scatter(rows, slots, caches)
    for got, cache in zip(caches, wanted, strict=True):
        assert as_bytes(got) == as_bytes(cache)


def test_what_lies_between_pages_is_left_alone() -> None:
    pool = torch.full((3, 100), 9, dtype=torch.int8)
    cache = pool[:, 20:36].view(3, 4, 4)
    paged_scatter([torch.ones((2, 4), dtype=torch.int8)], torch.tensor([1, 11]).int(), [cache])
    assert pool.to(torch.int64).sum() == 9 * (300 - 8) + 8
    assert pool[0, 24:28].tolist() == [1] * 4
    assert pool[2, 32:36].tolist() == [1] * 4


def arguments(**changes: Any) -> dict[str, Any]:
    right: dict[str, Any] = {
        "rows": [torch.ones((3, 2, 4)), torch.ones((3, 5), dtype=torch.int8)],
        "slots": torch.tensor([4, -1, 0], dtype=torch.int32),
        "caches": [torch.zeros((2, 8, 2, 4)), torch.zeros((2, 8, 5), dtype=torch.int8)],
    }
    return right | changes


WRONG: list[tuple[str, Any, str]] = [
    ("rows", [], "rows holds 0 components"),
    ("rows", [torch.ones(3)] * 5, "rows holds 5 components; it must hold 1 to 4"),
    ("rows", [torch.ones((3, 2, 4))], "caches holds 2 tensors for 1 of rows"),
    ("rows", [torch.ones((3, 8)), torch.ones((3, 5))], r"rows\[0\] has the shape \(3, 8\)"),
    ("rows", [torch.ones((3, 2, 4)), torch.ones((3, 5))], r"rows\[1\] is torch.float32"),
    ("rows", [torch.ones((3, 4, 2)).mT, torch.ones((3, 5))], r"rows\[0\] has the strides"),
    ("slots", torch.zeros(3, dtype=torch.int64), "slots is int64; it must be int32"),
    ("slots", torch.zeros(4, dtype=torch.int32), r"rows\[0\] .* with slots 4 long"),
    ("caches", [torch.zeros(3), torch.zeros(3)], r"caches\[0\] .*must be \(blocks, block size"),
    ("caches", [torch.zeros((2, 8, 4, 2)).mT] * 2, r"caches\[0\] has the strides"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_wrong_arguments_are_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"mkv_ascend::paged_scatter: {message}"):
        paged_scatter(**arguments(**{name: value}))


def test_opcheck() -> None:
    torch.library.opcheck(torch.ops.mkv_ascend.paged_scatter.default, tuple(arguments().values()))
