# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's compressor: one key for every 4 or 128 tokens, and where it is to be written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import OperatorArgumentError, operator
from emulated_npu.operators.requirements import (
    FLOATS,
    HALF_FLOATS,
    require,
    require_dtype,
    require_multiple,
    require_range,
    require_same_dtype,
    require_shape,
)

OVERLAPPING = 2  # coff: a key is made of two groups of tokens, with other features of each
INTERLEAVED = 2  # rotary_mode
CONTINUOUS = 1  # cache_mode: a state lies where its position's block is
UNUSED_BLOCK = 0  # of the state's table: not written
ROPE_SIZE = 64
# head size, coff and ratio that are documented
FORMS = frozenset({(512, 2, 4), (128, 2, 4), (512, 1, 128)})


@dataclass(frozen=True)
class StatePages:
    """The states of one request in the paged cache: rows of keys and of scores by position.

    cache (blocks, block size, 2 * width), keys first; blocks: the request's row of the table.
    """

    cache: torch.Tensor
    blocks: list[int]

    def row(self, position: int) -> torch.Tensor:
        """A view of the state at ``position``: (2 * width,)."""
        column, offset = divmod(position, self.cache.shape[1])
        return self.cache[self.blocks[column], offset]

    def write(self, position: int, state: torch.Tensor) -> None:
        if self.blocks[position // self.cache.shape[1]] != UNUSED_BLOCK:
            self.row(position).copy_(state)


@operator(
    "compressor",
    namespace="_C_ascend",
    source="vllm-ascend: README of compressor; its kernel for the layout of state_cache (keys, "
    "then scores with the bias added) and for block 0, which is not written",
    limits="""x, wkv and wgate float16 or bfloat16 of one dtype, hidden size from 1024 to 10240 in
    steps of 512; state_cache and ape float32; (head size, coff, cmp_ratio) (512, 2, 4),
    (128, 2, 4) or (512, 1, 128); rope_head_dim 64; rotary_mode 2; cache_mode 1; int32 tables and
    lengths. The README rules A2 out; the definition of the kernel has it.""",
    missing="x of three dimensions, seqused",
    writes=("state_cache",),
)
def compressor(
    x: torch.Tensor,
    wkv: torch.Tensor,
    wgate: torch.Tensor,
    state_cache: torch.Tensor,
    ape: torch.Tensor,
    norm_weight: torch.Tensor,
    rope_sin: torch.Tensor,
    rope_cos: torch.Tensor,
    state_block_table: torch.Tensor | None,
    cu_seqlens: torch.Tensor | None,
    seqused: torch.Tensor | None,
    start_pos: torch.Tensor | None,
    rope_head_dim: int,
    cmp_ratio: int,
    coff: int,
    norm_eps: float,
    rotary_mode: int,
    cache_mode: int,
) -> torch.Tensor:
    """The keys of the groups of cmp_ratio tokens that these tokens complete; the states are kept.

    x (T, hidden), wkv and wgate (coff * D, hidden), ape (ratio, coff * D), state_cache (blocks,
    block size, 2 * coff * D), cu_seqlens (B + 1,), start_pos (B,), rope rows (rows, 64), one for
    each key in order. Returns (rows, D) as x, rows = min(T, T // ratio + B), zeros behind the keys.
    """
    if x.dim() != 2 or seqused is not None or cu_seqlens is None:
        raise NotImplementedError(
            "emulated NPU: compressor takes x of two dimensions with cu_seqlens, without seqused"
        )
    if state_block_table is None or start_pos is None:
        raise OperatorArgumentError("state_block_table or start_pos is None; both are needed")
    size = norm_weight.shape[0]
    keys, scores = (x.float() @ weight.float().T for weight in (wkv, wgate))
    num_rows = min(x.shape[0], x.shape[0] // cmp_ratio + start_pos.shape[0])
    made = [torch.zeros(0, size)]
    bounds = cu_seqlens.tolist()
    for index, start in enumerate(start_pos.tolist()):
        pages = StatePages(state_cache, state_block_table[index].tolist())
        first, last = bounds[index], bounds[index + 1]
        for row, position in zip(
            range(first, last), range(start, start + last - first), strict=True
        ):
            score = scores[row] + ape[position % cmp_ratio]
            pages.write(position, torch.cat((keys[row], score)))
        for group in range(start // cmp_ratio, (start + last - first) // cmp_ratio):
            made.append(_key_of(pages, group, cmp_ratio, coff, size).unsqueeze(0))
    compressed = torch.cat(made)[:num_rows]
    count = compressed.shape[0]
    root = torch.rsqrt(compressed.square().mean(-1, keepdim=True) + norm_eps)
    normed = compressed * root * norm_weight.float()
    plain, rope = normed.split([size - rope_head_dim, rope_head_dim], -1)
    rope = rotate_pairs(rope, rope_cos[:count].float(), rope_sin[:count].float())
    output = x.new_zeros(num_rows, size)
    output[:count] = torch.cat((plain, rope), -1).to(x.dtype)
    return output


def _key_of(pages: StatePages, group: int, ratio: int, coff: int, size: int) -> torch.Tensor:
    """The key of ``group`` before its norm: states weighted by the softmax of their scores."""
    positions = range(group * ratio, (group + 1) * ratio)
    width = coff * size
    if coff != OVERLAPPING:
        states = torch.stack([pages.row(position) for position in positions])
        return (states[:, width:].softmax(0) * states[:, :width]).sum(0)
    own = torch.stack([pages.row(position) for position in positions])
    keys, scores = own[:, size:width], own[:, width + size :]
    if group > 0:
        # The first features of the group before, and the second features of this one.
        before = torch.stack([pages.row(position - ratio) for position in positions])
        keys = torch.cat((before[:, :size], keys))
        scores = torch.cat((before[:, width : width + size], scores))
    return (scores.softmax(0) * keys).sum(0)


def rotate_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """x * cos + (-x1, x0, -x3, x2, ...) * sin over the last axis."""
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * cos + turned * sin


@compressor.check
def _check_compressor(given: Arguments) -> None:
    size, hidden = given.norm_weight.shape[0], given.x.shape[-1]
    require_dtype("x", given.x, HALF_FLOATS)
    require_same_dtype(x=given.x, wkv=given.wkv, wgate=given.wgate)
    require_range("the hidden size", hidden, 1024, 10240)
    require_multiple("the hidden size", hidden, 512)
    require(
        (size, given.coff, given.cmp_ratio) in FORMS,
        f"head size {size}, coff {given.coff} and cmp_ratio {given.cmp_ratio} are not documented "
        f"together; documented: {sorted(FORMS)}",
    )
    for name, weight in (("wkv", given.wkv), ("wgate", given.wgate)):
        require_shape(name, weight, (given.coff * size, hidden))
    for name, tensor, shape in (
        ("state_cache", given.state_cache, (None, None, 2 * given.coff * size)),
        ("ape", given.ape, (given.cmp_ratio, given.coff * size)),
    ):
        require_dtype(name, tensor, (torch.float32,))
        require_shape(name, tensor, shape)
    rows = min(
        given.x.shape[0],
        given.x.shape[0] // given.cmp_ratio
        + (0 if given.start_pos is None else len(given.start_pos)),
    )
    for name, rope in (("rope_sin", given.rope_sin), ("rope_cos", given.rope_cos)):
        require_dtype(name, rope, FLOATS)
        require_shape(name, rope, (None, ROPE_SIZE))
        require(rope.shape[0] >= rows, f"{name} has {rope.shape[0]} rows; {rows} are needed")
    for name, value, wanted in (
        ("rope_head_dim", given.rope_head_dim, ROPE_SIZE),
        ("rotary_mode", given.rotary_mode, INTERLEAVED),
        ("cache_mode", given.cache_mode, CONTINUOUS),
    ):
        require(value == wanted, f"{name} is {value}; it must be {wanted}")
    tables = {
        name: getattr(given, name) for name in ("state_block_table", "cu_seqlens", "start_pos")
    }
    for name, table in tables.items():
        if table is not None:
            require_dtype(name, table, (torch.int32,))


FLAT_SLOTS = 1  # slot_mapping_format: slots; else pairs of block and offset


@operator(
    "compressor_metadata",
    namespace="_C_ascend",
    source="vllm-ascend tests: test_compressor_metadata",
    limits="""rope tables of one dtype, a row for each position; int32 lengths and tables;
    slot_mapping_format 1 (slots) or 2 (block and offset).""",
)
def compressor_metadata(
    rope_cos: torch.Tensor,
    rope_sin: torch.Tensor,
    cu_seqlens: torch.Tensor,
    start_pos: torch.Tensor,
    kv_block_table: torch.Tensor,
    kv_block_size: int,
    slot_mapping_format: int,
    compress_ratio: int,
    num_compressed_tokens: int,
    num_reqs_actual: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rope rows and slots of the keys that a compressor will make, in its order.

    Returns cos and sin (rows, 1, 1, D) and slots (rows,) or (rows, 2). A row without a key has
    cos 1, sin 0 and the slot -1, or block -1 and the block's last offset.
    """
    rows = num_compressed_tokens
    cos = rope_cos.new_ones(rows, 1, 1, rope_cos.shape[-1])
    sin = rope_sin.new_zeros(rows, 1, 1, rope_sin.shape[-1])
    pairs = torch.tensor([-1, kv_block_size - 1], dtype=torch.int32).repeat(rows, 1)
    keys = _keys_to_come(cu_seqlens, start_pos, compress_ratio, num_reqs_actual)
    for row, (request, key) in zip(range(rows), keys, strict=False):
        column, position = key // kv_block_size, key * compress_ratio
        if column >= kv_block_table.shape[1] or position >= rope_cos.shape[0]:
            continue
        block = int(kv_block_table[request, column])
        if block < 0:
            continue
        cos[row, 0, 0] = rope_cos[position].flatten()
        sin[row, 0, 0] = rope_sin[position].flatten()
        pairs[row] = torch.tensor([block, key % kv_block_size])
    if slot_mapping_format != FLAT_SLOTS:
        return cos, sin, pairs
    slots = pairs[:, 0] * kv_block_size + pairs[:, 1]
    return cos, sin, slots.masked_fill(pairs[:, 0] < 0, -1)


def _keys_to_come(
    cu_seqlens: torch.Tensor, start_pos: torch.Tensor, ratio: int, num_requests: int
) -> Iterator[tuple[int, int]]:
    """Request and index of each key that is completed, request after request."""
    bounds = cu_seqlens.tolist()
    for request, start in enumerate(start_pos.tolist()[:num_requests]):
        length = bounds[request + 1] - bounds[request]
        if start >= 0 and length > 0:
            for key in range(start // ratio, (start + length) // ratio):
                yield request, key


@compressor_metadata.check
def _check_metadata(given: Arguments) -> None:
    require_same_dtype(rope_cos=given.rope_cos, rope_sin=given.rope_sin)
    require_shape("rope_sin", given.rope_sin, given.rope_cos.shape)
    for name, tensor in (
        ("cu_seqlens", given.cu_seqlens),
        ("start_pos", given.start_pos),
        ("kv_block_table", given.kv_block_table),
    ):
        require_dtype(name, tensor, (torch.int32,))
    require(
        given.slot_mapping_format in (1, 2),
        f"slot_mapping_format is {given.slot_mapping_format}; it must be 1 or 2",
    )
    require_range("num_reqs_actual", given.num_reqs_actual, 0, given.start_pos.shape[0])


@operator(
    "compressor_metadata_out",
    namespace="_C_ascend",
    source="vllm-ascend tests: test_compressor_metadata",
    limits="as compressor_metadata, into the three tensors given.",
    writes=("compress_cos", "compress_sin", "slot_mapping"),
)
def compressor_metadata_out(
    rope_cos: torch.Tensor,
    rope_sin: torch.Tensor,
    cu_seqlens: torch.Tensor,
    start_pos: torch.Tensor,
    kv_block_table: torch.Tensor,
    kv_block_size: int,
    slot_mapping_format: int,
    compress_ratio: int,
    num_reqs_actual: int,
    compress_cos: torch.Tensor,
    compress_sin: torch.Tensor,
    slot_mapping: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """compressor_metadata for as many rows as slot_mapping has."""
    made = compressor_metadata.kernel(
        rope_cos, rope_sin, cu_seqlens, start_pos, kv_block_table, kv_block_size,
        slot_mapping_format, compress_ratio, slot_mapping.shape[0], num_reqs_actual,
    )  # fmt: skip
    given = (compress_cos, compress_sin, slot_mapping)
    for target, value in zip(given, made, strict=True):
        target.copy_(value.view(target.shape))
    return given
