# SPDX-License-Identifier: Apache-2.0
"""What planning must know of a layer: blocks that a request holds, bytes in planes and rows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.pooling import ROW_ALIGNMENT
from mkv_ascend.layout.requirements import (
    LayerRequirements,
    Request,
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


SIZES = st.sampled_from([1, 2, 3, 4, 8, 16])


def blocks_touched(first: int, last: int, block_size: int) -> int:
    return len({token // block_size for token in range(first, last + 1)})


@given(tokens=st.integers(1, 200), block_size=SIZES, step=st.integers(1, 8))
def test_all_tokens_take_the_blocks_they_lie_in(tokens: int, block_size: int, step: int) -> None:
    held = Retention(RetentionKind.ALL).blocks(block_size, Request(tokens, step))
    assert held == blocks_touched(0, tokens - 1, block_size)


@given(
    tokens=st.integers(1, 120), window=st.integers(1, 40), block_size=SIZES, step=st.integers(1, 8)
)
def test_a_window_never_needs_more_than_counted(
    tokens: int, window: int, block_size: int, step: int
) -> None:
    counted = Retention(RetentionKind.WINDOW, window).blocks(block_size, Request(tokens, step))
    most = 0
    for end in range(1, tokens + 1):
        first = max(0, end - step - window + 1)
        most = max(most, blocks_touched(first, end - 1, block_size))
    assert most <= counted <= most + 2


@pytest.mark.parametrize(
    ("window", "block_size", "blocks"),
    [(128, 128, 3), (512, 128, 6), (512, 512, 3), (1024, 128, 10)],
)
def test_a_window_counts_as_vllm_admits(window: int, block_size: int, blocks: int) -> None:
    request = Request(32768, tokens_per_step=4)
    assert Retention(RetentionKind.WINDOW, window).blocks(block_size, request) == blocks


def test_states_do_not_depend_on_the_length() -> None:
    retention = Retention(RetentionKind.STATE, 1, extra_blocks=3)
    assert {
        retention.blocks(size, Request(tokens)) for size in (1, 128) for tokens in (1, 9999)
    } == {4}


@pytest.mark.parametrize(
    ("kind", "extent", "blocks"),
    [
        (RetentionKind.ALL, 0, 1000),
        (RetentionKind.WINDOW, 100, 100 - 1 + 10 + 1),
        (RetentionKind.CHUNK, 100, 100 + 10),
        (RetentionKind.ENCODER, 100, 100),
        (RetentionKind.STATE, 2, 2),
        # No more than there are tokens.
        (RetentionKind.WINDOW, 1000, 1000 + 1),
        (RetentionKind.CHUNK, 1000, 1000),
    ],
)
def test_blocks_of_one_token_count_every_token(
    kind: RetentionKind, extent: int, blocks: int
) -> None:
    """As ``max_memory_usage_bytes`` of vLLM's specs, where a step adds 10 tokens."""
    request = Request(1000, tokens_per_step=10)
    assert Retention(kind, extent).blocks(1, request) == blocks
    assert Retention(kind, extent, extra_blocks=3).blocks(1, request) == blocks + 3


def test_chunks_encoders_and_compressed_rows() -> None:
    request = Request(1000, tokens_per_step=10)
    assert Retention(RetentionKind.CHUNK, 100).blocks(20, request) == 6
    assert Retention(RetentionKind.CHUNK, 2000).blocks(20, request) == 50
    assert Retention(RetentionKind.ENCODER, 1500).blocks(128, request) == 12
    assert Retention(RetentionKind.ALL, tokens_per_row=4).blocks(128, request) == 2
