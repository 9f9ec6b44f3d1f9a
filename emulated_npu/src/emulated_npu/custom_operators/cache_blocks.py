# SPDX-License-Identifier: Apache-2.0
"""Caches by blocks: writes of runs of tokens, and blocks that came in parts from several ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.cache_strides import are_documented, require_blocks
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    require,
    require_contiguous,
    require_dtype,
    require_multiple,
    require_range,
    require_rank,
    require_same_dtype,
    require_shape,
)

Group = tuple[int, int, int]
"""How many tokens, the first token, and its slot of the cache."""

STORED_DTYPES = (torch.int8, torch.float16, torch.bfloat16)
LARGEST_BLOCK = 180 * 1024
"""Elements of a block, which the kernel holds in its local memory."""


def groups_of(slots: list[int], block_size: int) -> list[Group]:
    """The longest runs of tokens with consecutive slots of one block; negative slots are left out.

    A run ends where the next slot does not follow, or where a block ends.
    """
    groups: list[Group] = []
    for token, slot in enumerate(slots):
        if slot < 0:
            continue
        if groups:
            length, first, start = groups[-1]
            follows = first + length == token and start + length == slot
            if follows and slot % block_size:
                groups[-1] = (length + 1, first, start)
                continue
        groups.append((1, token, slot))
    return groups


@operator(
    "store_kv_block_metadata",
    namespace="_C_ascend",
    source="vllm-ascend: StoreKvBlockMetadata, its kernel for the AI CPU, and its adapter",
    limits="All int32 of one dimension. slot_mapping_npu is not empty. The three that are written "
    "are contiguous, of one length, and have room for each group; what is over is 0.",
    writes=("group_len", "group_key_idx", "group_key_cache_idx"),
)
def store_kv_block_metadata(
    slot_mapping_npu: torch.Tensor,
    group_len: torch.Tensor,
    group_key_idx: torch.Tensor,
    group_key_cache_idx: torch.Tensor,
    block_size: int = 0,
) -> None:
    """Group the tokens of slot_mapping (tokens,) for store_kv_block.

    Writes for each group how many tokens it has, its first token, and the slot of that, in order
    of tokens. A negative slot belongs to no group.
    """
    found = groups_of(slot_mapping_npu.tolist(), block_size)
    columns = zip(*found, strict=True) if found else ((), (), ())
    for target, values in zip(
        (group_len, group_key_idx, group_key_cache_idx), columns, strict=True
    ):
        target.zero_()
        target[: len(found)] = torch.tensor(values, dtype=target.dtype)


@store_kv_block_metadata.check
def _check_metadata(
    slot_mapping_npu: torch.Tensor,
    group_len: torch.Tensor,
    group_key_idx: torch.Tensor,
    group_key_cache_idx: torch.Tensor,
    block_size: int,
) -> None:
    require(block_size > 0, f"block_size is {block_size}; it must be over 0")
    require_dtype("slot_mapping_npu", slot_mapping_npu, (torch.int32,))
    require_rank("slot_mapping_npu", slot_mapping_npu, 1)
    require(slot_mapping_npu.numel() > 0, "slot_mapping_npu is empty")
    _check_groups(group_len, group_key_idx, group_key_cache_idx)
    needed = len(groups_of(slot_mapping_npu.tolist(), block_size))
    require(
        needed <= group_len.numel(),
        f"group_len has {group_len.numel()} entries; the slots make {needed} groups",
    )


def _check_groups(*tensors: torch.Tensor) -> None:
    names = ("group_len", "group_key_idx", "group_key_cache_idx")
    for name, tensor in zip(names, tensors, strict=True):
        require_dtype(name, tensor, (torch.int32,))
        require_shape(name, tensor, (tensors[0].numel(),))
        require_contiguous(name, tensor)


@operator(
    "store_kv_block",
    namespace="_C_ascend",
    source="vllm-ascend: StoreKVBlock, its definition and tiling; tests: test_store_kv_block",
    limits="key_in (tokens, ...) and key_cache_in (blocks, block size, ...) int8, float16 or "
    "bfloat16, of 2 to 7 dimensions, with as many elements for a token; the cache contiguous. "
    "group_* int32, contiguous, as store_kv_block_metadata writes them; no group is longer than "
    "block_size or reaches out of key_in or the cache. A block has at most 184320 elements.",
    writes=("key_cache_in",),
)
def store_kv_block(
    key_in: torch.Tensor,
    key_cache_in: torch.Tensor,
    group_len: torch.Tensor,
    group_key_idx: torch.Tensor,
    group_key_cache_idx: torch.Tensor,
    block_size: int = 0,
) -> None:
    """Copy groups of tokens of key_in to their slots of key_cache_in.

    Slot i is place i of the cache, counted through its blocks. A group without a token, or with a
    negative index, is left out.
    """
    keys = key_in.reshape(key_in.shape[0], -1)
    slots = key_cache_in.view(-1, keys.shape[1])
    for length, token, slot in _given_groups(group_len, group_key_idx, group_key_cache_idx):
        slots[slot : slot + length] = keys[token : token + length]


def _given_groups(*columns: torch.Tensor) -> list[Group]:
    groups = zip(*(column.tolist() for column in columns), strict=True)
    return [group for group in groups if group[0] > 0 and min(group) >= 0]


@store_kv_block.check
def _check_store(
    key_in: torch.Tensor,
    key_cache_in: torch.Tensor,
    group_len: torch.Tensor,
    group_key_idx: torch.Tensor,
    group_key_cache_idx: torch.Tensor,
    block_size: int,
) -> None:
    require_dtype("key_in", key_in, STORED_DTYPES)
    require_same_dtype(key_in=key_in, key_cache_in=key_cache_in)
    for name, tensor in (("key_in", key_in), ("key_cache_in", key_cache_in)):
        require_range(f"{name}'s number of dimensions", tensor.dim(), 2, 7)
    require_contiguous("key_cache_in", key_cache_in)
    require(block_size > 0, f"block_size is {block_size}; it must be over 0")
    size = math.prod(key_in.shape[1:])
    require(
        math.prod(key_cache_in.shape[2:]) == size,
        f"key_cache_in has {math.prod(key_cache_in.shape[2:])} elements in a slot, key_in {size} "
        f"in a token; they must be as many",
    )
    require_range("the elements of a block", block_size * size, 1, LARGEST_BLOCK)
    _check_groups(group_len, group_key_idx, group_key_cache_idx)
    tokens, slots = key_in.shape[0], math.prod(key_cache_in.shape[:2])
    for length, token, slot in _given_groups(group_len, group_key_idx, group_key_cache_idx):
        require_range("a group's length", length, 1, block_size)
        require(
            token + length <= tokens and slot + length <= slots,
            f"a group of {length} from token {token} to slot {slot} reaches out of {tokens} tokens "
            f"or {slots} slots",
        )


HEAD_MULTIPLE = 16
"""Elements of 16 bits in the 32 bytes that the kernel moves at once."""


@operator(
    "transpose_kv_cache_by_block",
    namespace="_C_ascend",
    source="vllm-ascend 0.30.0rc2: README of TransposeKvCacheByBlock; 0.23.0: its definition, and "
    "tests: test_transpose_kv_cache_by_block",
    limits="layerNum (at least 1) caches each (blocks, blockSize, headNum, headDim), all float16 "
    "or all bfloat16; headDim a multiple of 16, headNum one of splitNum; blockIDs int64, "
    "contiguous, each block of the caches once. With vllm-ascend 0.30 blocks may lie apart, and "
    "blockIDs may be empty; before, the caches are contiguous.",
    writes=("kCache", "vCache"),
)
def transpose_kv_cache_by_block(
    kCache: Sequence[torch.Tensor],  # noqa: N803 (names of the installed schema)
    vCache: Sequence[torch.Tensor],  # noqa: N803
    blockIDs: torch.Tensor,  # noqa: N803
    blockSize: int,  # noqa: N803
    headNum: int,  # noqa: N803
    headDim: int,  # noqa: N803
    splitNum: int,  # noqa: N803
    layerNum: int,  # noqa: N803
) -> None:
    """Put the heads of blocks in order that came from splitNum ranks, a part after the other.

    Part i of a block holds heads i * headNum / splitNum and following, of all its tokens. After it,
    each token has its heads beside one another, as (blockSize, headNum, headDim) says.
    """
    for cache in (*kCache, *vCache):
        blocks = cache[blockIDs]
        parts = blocks.reshape(-1, splitNum, blockSize, headNum // splitNum * headDim)
        cache[blockIDs] = parts.transpose(1, 2).reshape(blocks.shape)


@transpose_kv_cache_by_block.check
def _check_transpose(given: Arguments) -> None:
    require_multiple("headDim", given.headDim, HEAD_MULTIPLE)
    require(given.splitNum > 0, f"splitNum is {given.splitNum}; it must be over 0")
    require_multiple("headNum", given.headNum, given.splitNum)
    for name, caches in (("kCache", given.kCache), ("vCache", given.vCache)):
        require(
            len(caches) == given.layerNum > 0,
            f"{name} has {len(caches)} caches; layerNum, at least 1, is {given.layerNum}",
        )
        for i, cache in enumerate(caches):
            require_dtype(f"{name}[{i}]", cache, HALF_FLOATS)
            require_same_dtype(**{"kCache[0]": given.kCache[0], f"{name}[{i}]": cache})
            shape = (given.kCache[0].shape[0], given.blockSize, given.headNum, given.headDim)
            require_shape(f"{name}[{i}]", cache, shape)
            require_blocks(f"{name}[{i}]", cache)
    require_dtype("blockIDs", given.blockIDs, (torch.int64,))
    require_rank("blockIDs", given.blockIDs, 1)
    require_contiguous("blockIDs", given.blockIDs)
    _check_chosen(given.blockIDs.tolist(), given.kCache[0].shape[0])


def _check_chosen(chosen: list[int], blocks: int) -> None:
    require(
        bool(chosen) or are_documented(),
        "blockIDs is empty; before vllm-ascend 0.30 it must name a block",
    )
    require(
        len(set(chosen)) == len(chosen) and set(chosen) <= set(range(blocks)),
        f"blockIDs is {chosen}; it must name blocks from 0 to {blocks - 1}, each at most once",
    )
