# SPDX-License-Identifier: Apache-2.0
"""`python -m reliability plans`: ten thousand plans share no byte, and one that does is noticed."""

import random
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from mkv_ascend.layout.component import ONE_BLOCK, Storage
from reliability import plans


def test_ten_thousand_random_plans_share_no_byte() -> None:
    faults = {number: plans.fault_of(1, number) for number in range(10_000)}
    assert {number: fault for number, fault in faults.items() if fault} == {}


def test_groups_of_each_number_and_layers_of_each_storage_are_drawn() -> None:
    drawn = [plans.draw(random.Random(number)) for number in range(200)]
    assert {len(groups) for groups in drawn} == {1, 2, 3}
    layers = [layer for groups in drawn for group in groups for layer in group]
    assert {layer.storage for layer in layers} == {*Storage}
    assert {layer.kernel_splits for layer in layers} == {1, 2}


def view(offset: int, buffer: int = 0) -> SimpleNamespace:
    """Of two rows of four bytes: one row a block."""
    return SimpleNamespace(
        buffer=buffer, offset_bytes=offset, rows_per_block=1, shape=(2, 4), strides=(4, 1)
    )


def test_each_byte_of_a_block_is_found() -> None:
    """As numpy's strides have it: blocks of two rows, whose elements are apart."""
    shape, strides = (6, 2, 3), (16, 7, 2)
    one = SimpleNamespace(offset_bytes=5, rows_per_block=2, shape=shape, strides=strides)
    numbers = np.arange(100, dtype=np.int8)
    elements = np.lib.stride_tricks.as_strided(numbers[5:], shape, strides)
    for block in range(3):
        expected = elements[2 * block : 2 * block + 2].ravel().tolist()
        assert list(plans._bytes_of(cast(Any, one), block)) == expected


def plan(group_of: dict[str, int], **views: SimpleNamespace) -> Any:
    bound = SimpleNamespace(
        views=lambda: {name: SimpleNamespace(views=[one]) for name, one in views.items()},
        buffers=(16, 16),
    )
    shapes = (ONE_BLOCK,) * 2
    return SimpleNamespace(bind=lambda blocks: bound, group_of=group_of, shapes=shapes)


@pytest.mark.parametrize(
    ("groups", "offset", "fault"),
    [
        # Layers of two groups may have the same bytes of the same block, and no others.
        ((0, 1), 0, ""),
        ((0, 1), 8, ""),
        ((0, 0), 8, ""),
        ((0, 1), 4, "b has byte (0, 4) of page 1 in page 0"),
        ((0, 0), 0, "b has byte (0, 0) of its own KV group"),
        ((0, 1), 12, "b leaves buffer 0 in block 1 by byte 16"),
        ((0, 1), -4, "b leaves buffer 0 in block 0 by byte -4"),
    ],
)
def test_a_shared_byte_is_found(groups: tuple[int, int], offset: int, fault: str) -> None:
    one = plan({"a": groups[0], "b": groups[1]}, a=view(0), b=view(offset))
    assert plans.shared_byte(one, 2) == fault
