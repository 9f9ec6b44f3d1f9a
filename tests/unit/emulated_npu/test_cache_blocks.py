# SPDX-License-Identifier: Apache-2.0
"""Groups of tokens with consecutive slots, the writes they stand for, blocks that came in parts."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from emulated_npu.custom_operators.cache_blocks import (
    store_kv_block,
    store_kv_block_metadata,
    transpose_kv_cache_by_block,
)
from tests.support.operators.operator_testing import (
    few,
    random_integers,
    random_tensor,
    refused,
    seeds,
)

BLOCK, BLOCKS = 4, 6

slot_runs = st.lists(
    st.tuples(st.integers(0, BLOCK * BLOCKS - 1), st.integers(1, 9), st.booleans()),
    min_size=1,
    max_size=5,
)
"""Where a run of slots starts, how long it is, and whether a negative slot follows it."""


def int32(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def slots_of(runs: list[tuple[int, int, bool]]) -> list[int]:
    slots: list[int] = []
    for start, length, padded in runs:
        slots += range(start, min(start + length, BLOCK * BLOCKS))
        slots += [-1] * padded
    return slots


def grouped(slots: list[int], room: int | None = None) -> list[torch.Tensor]:
    """What store_kv_block_metadata writes; what was there before is not to be seen."""
    written = [torch.full((room or len(slots),), 77, dtype=torch.int32) for _ in range(3)]
    assert store_kv_block_metadata.checked(int32(*slots), *written, BLOCK) is None
    return written


@few
@given(slot_runs)
def test_groups_cover_each_slot_once_and_are_as_long_as_can_be(runs):
    slots = slots_of(runs)
    groups = list(zip(*(column.tolist() for column in grouped(slots)), strict=True))
    used = [group for group in groups if group[0]]
    assert groups == used + [(0, 0, 0)] * (len(slots) - len(used))
    covered = []
    for length, token, slot in used:
        covered += [(token + i, slot + i) for i in range(length)]
        assert slot // BLOCK == (slot + length - 1) // BLOCK
    assert covered == [(token, slot) for token, slot in enumerate(slots) if slot >= 0]
    for (length, token, slot), (_, next_token, next_slot) in pairwise(used):
        joins = (token + length, slot + length) == (next_token, next_slot)
        assert not joins or next_slot % BLOCK == 0


def test_groups_by_hand():
    lengths, tokens, slots = grouped([-1, 2, 3, 4, 5, 9, -1, 10, 6], room=7)
    assert lengths.tolist() == [2, 2, 1, 1, 1, 0, 0]
    assert tokens.tolist() == [1, 3, 5, 7, 8, 0, 0]
    assert slots.tolist() == [2, 4, 9, 10, 6, 0, 0]
    assert [column.tolist() for column in grouped([-1, -1])] == [[0, 0]] * 3


@few
@given(
    seeds,
    slot_runs,
    st.sampled_from([torch.int8, torch.float16, torch.bfloat16]),
    st.sampled_from([(3,), (1, 3), (2, 2)]),
)
def test_tokens_are_stored_in_their_slots(seed, runs, dtype, token_shape):
    slots = slots_of(runs)
    keys = random_integers(seed, -99, 99, (len(slots), *token_shape)).to(dtype)
    size = keys[0].numel()
    cache = random_integers(seed + 1, -99, 99, (BLOCKS, BLOCK, 1, size)).to(dtype)
    expected = cache.flatten().tolist()
    for token, slot in enumerate(slots):
        for i in range(size if slot >= 0 else 0):
            expected[slot * size + i] = keys[token].flatten().tolist()[i]
    assert store_kv_block.checked(keys, cache, *grouped(slots), BLOCK) is None
    assert cache.flatten().tolist() == expected


def test_groups_without_a_token_or_with_a_negative_index_are_left_out():
    cache = torch.zeros(1, BLOCK, 1, dtype=torch.int8)
    groups = int32(0, 1, 1, -1, 1), int32(0, -1, 0, 0, 1), int32(0, 1, -1, 0, 3)
    store_kv_block.checked(torch.tensor([[5], [6]], dtype=torch.int8), cache, *groups, BLOCK)
    assert cache.flatten().tolist() == [0, 0, 0, 6]


def test_refusals_of_groups():
    out = [int32(0, 0) for _ in range(3)]
    with refused("store_kv_block_metadata: block_size is 0; it must be over 0"):
        store_kv_block_metadata.checked(int32(1), *out)
    with refused("slot_mapping_npu is int64; documented: int32"):
        store_kv_block_metadata.checked(int32(1).long(), *out, BLOCK)
    with refused("slot_mapping_npu has 2 dimensions"):
        store_kv_block_metadata.checked(int32(1, 2).view(1, 2), *out, BLOCK)
    with refused("slot_mapping_npu is empty"):
        store_kv_block_metadata.checked(int32(), *out, BLOCK)
    with refused("group_key_idx is int64"):
        store_kv_block_metadata.checked(int32(1), out[0], out[1].long(), out[2], BLOCK)
    with refused(r"group_key_cache_idx has shape \(3,\); it must be \(2\)"):
        store_kv_block_metadata.checked(int32(1), *out[:2], int32(0, 0, 0), BLOCK)
    with refused(r"group_len \(.*is not contiguous"):
        store_kv_block_metadata.checked(int32(1), int32(0, 0, 0)[::2], *out[:2], BLOCK)
    with refused("group_len has 2 entries; the slots make 3 groups"):
        store_kv_block_metadata.checked(int32(1, 3, 5), *out, BLOCK)
    assert [column.tolist() for column in out] == [[0, 0]] * 3


def store(**changes):
    given = {
        "key_in": torch.zeros(4, 2, dtype=torch.int8),
        "key_cache_in": torch.zeros(BLOCKS, BLOCK, 1, 2, dtype=torch.int8),
        "group_len": int32(2),
        "group_key_idx": int32(2),
        "group_key_cache_idx": int32(BLOCK * BLOCKS - 2),
        "block_size": BLOCK,
    }
    store_kv_block.checked(**{**given, **changes})


REFUSED = {
    "key_in is float32; documented: int8": {"key_in": torch.zeros(4, 2)},
    "key_in is int8, key_cache_in is float16": {
        "key_cache_in": torch.zeros(BLOCKS, BLOCK, 2).half()
    },
    "key_in's number of dimensions is 1": {"key_in": torch.zeros(4, dtype=torch.int8)},
    "key_cache_in .*is not contiguous": {
        "key_cache_in": torch.zeros(BLOCKS, BLOCK, 1, 4, dtype=torch.int8)[..., ::2]
    },
    "key_cache_in has 2 elements in a slot, key_in 3": {
        "key_in": torch.zeros(4, 3, dtype=torch.int8)
    },
    "block_size is 0": {"block_size": 0},
    "the elements of a block is 184322": {"block_size": 92161},
    "group_len is int64": {"group_len": torch.tensor([2])},
    "a group's length is 5; it must be from 1 to 4": {"group_len": int32(5)},
    "from token 3 to slot 22 reaches out of 4 tokens": {"group_key_idx": int32(3)},
    "from token 2 to slot 23 reaches out of 4 tokens or 24 slots": {
        "group_key_cache_idx": int32(23)
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_refusals_of_stores(message):
    store()
    with refused(message):
        store(**REFUSED[message])


HEAD = 16


@few
@given(
    seeds,
    st.sampled_from([torch.float16, torch.bfloat16]),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, BLOCKS),
)
def test_blocks_from_several_ranks(seed, dtype, parts, heads_of_a_part, layers, chosen):
    heads = parts * heads_of_a_part
    order = torch.randperm(BLOCKS, generator=torch.Generator().manual_seed(seed))[:chosen]
    whole = random_tensor(seed, (2 * layers, BLOCKS, BLOCK, heads, HEAD), dtype)
    caches = whole.clone()
    for cache, source in zip(caches, whole, strict=True):
        for block in order.tolist():
            received = [
                source[block, token, head].tolist()
                for part in range(parts)
                for token in range(BLOCK)
                for head in range(part * heads_of_a_part, (part + 1) * heads_of_a_part)
            ]
            cache[block] = torch.tensor(received, dtype=dtype).view(BLOCK, heads, HEAD)
    keys, values = list(caches[:layers]), list(caches[layers:])
    transpose_kv_cache_by_block.checked(keys, values, order, BLOCK, heads, HEAD, parts, layers)
    assert torch.equal(caches, whole)


def transpose(**changes):
    cache = torch.zeros(BLOCKS, BLOCK, 2, HEAD).half()
    given = {
        "kCache": [cache],
        "vCache": [cache.clone()],
        "blockIDs": torch.tensor([4, 0]),
        "blockSize": BLOCK,
        "headNum": 2,
        "headDim": HEAD,
        "splitNum": 2,
        "layerNum": 1,
    }
    transpose_kv_cache_by_block.checked(**{**given, **changes})


REFUSED_PARTS = {
    "headDim is 8; it must be a multiple of 16": {"headDim": 8},
    "splitNum is 0": {"splitNum": 0},
    "headNum is 2; it must be a multiple of 3": {"splitNum": 3},
    "kCache has 1 caches; layerNum, at least 1, is 2": {"layerNum": 2},
    "vCache has 0 caches": {"vCache": []},
    r"kCache\[0\] is float32": {"kCache": [torch.zeros(BLOCKS, BLOCK, 2, HEAD)]},
    r"kCache\[0\] is float16, vCache\[0\] is bfloat16": {
        "vCache": [torch.zeros(BLOCKS, BLOCK, 2, HEAD).bfloat16()]
    },
    r"vCache\[0\] has shape \(1, 4, 2, 16\); it must be \(6, 4, 2, 16\)": {
        "vCache": [torch.zeros(1, BLOCK, 2, HEAD).half()]
    },
    r"kCache\[0\] .*is not contiguous": {
        "kCache": [torch.zeros(BLOCKS, BLOCK, 2, 2 * HEAD).half()[..., ::2]]
    },
    "blockIDs is int32; documented: int64": {"blockIDs": int32(1)},
    "blockIDs has 2 dimensions": {"blockIDs": torch.tensor([[1]])},
    r"blockIDs is \[6\]; it must name blocks from 0 to 5": {"blockIDs": torch.tensor([6])},
    r"blockIDs is \[-1\]": {"blockIDs": torch.tensor([-1])},
    r"blockIDs is \[1, 1\]": {"blockIDs": torch.tensor([1, 1])},
    r"blockIDs \(.*is not contiguous": {"blockIDs": torch.arange(4)[::2]},
    "blockIDs is empty": {"blockIDs": torch.tensor([], dtype=torch.int64)},
}


@pytest.mark.parametrize("message", REFUSED_PARTS)
def test_refusals_of_blocks_in_parts(message):
    transpose()
    with refused(message):
        transpose(**REFUSED_PARTS[message])
