# SPDX-License-Identifier: Apache-2.0
"""What planning must know of a layer: block sizes, and bytes in planes and rows."""

from __future__ import annotations

from typing import Any

import pytest

from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.pooling import ROW_ALIGNMENT
from mkv_ascend.layout.requirements import (
    LayerRequirements,
    Retention,
    RetentionKind,
    block_of_kernels,
    block_size_choices,
)


def layer(
    name: str, rows: tuple[int, ...] = (2, 2), sizes: tuple[int, ...] = (16, 32), **fields: Any
) -> LayerRequirements:
    retention = Retention(RetentionKind.ALL)
    return LayerRequirements(
        name, Role.TARGET, Kind.FULL_ATTENTION, retention, sizes, rows, **fields
    )


@pytest.mark.parametrize(
    ("fields", "sizes"),
    [
        ({}, (32, 48)),
        ({"takes_strides": True}, (80,)),
        # Two kernel blocks of 16 and of 24 bytes, each aligned.
        ({"is_packed": True, "kernel_block": 8}, (2 * ROW_ALIGNMENT, 2 * ROW_ALIGNMENT)),
        ({"is_packed": True}, (ROW_ALIGNMENT, 2 * ROW_ALIGNMENT)),
    ],
    ids=["contiguous", "page", "packed", "packed in one kernel block"],
)
def test_bytes_of_a_block_in_each_plane(fields: dict[str, Any], sizes: tuple[int, ...]) -> None:
    assert layer("a", rows=(2, 3), **fields).sizes_in_planes(16) == sizes


def test_choices_of_block_sizes() -> None:
    assert block_size_choices(128, 128, 512) == (128, 256, 512)
    assert block_size_choices(1024, 128, 1024) == (1024, 128, 256, 512)
    with pytest.raises(ValueError, match="choose a multiple of 128"):
        block_size_choices(64, 128, 512)


@pytest.mark.parametrize(
    ("own", "kernels", "block"),
    [(32, (128,), 128), (384, (128,), 384), (64, (128, 64), 64), (96, (128, 64), 192)],
)
def test_blocks_are_no_larger_than_kernels_need(
    own: int, kernels: tuple[int, ...], block: int
) -> None:
    assert block_of_kernels(own, kernels) == block
