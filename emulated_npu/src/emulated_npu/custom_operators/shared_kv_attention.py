# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's attention: to a window of keys, and to compressed keys, all or chosen ones."""

from __future__ import annotations

import torch

from emulated_npu.operators.attention_core import attend
from emulated_npu.operators.attention_paging import select_pages
from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import OperatorArgumentError, operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    require,
    require_dtype,
    require_multiple,
    require_range,
    require_same_dtype,
    require_shape,
)
from emulated_npu.operators.sparse_attention import chosen_mask

METADATA_SIZE = 1024
HEADS, HEAD_SIZE, CHOSEN_KEYS = 64, 512, 512
BAND, CAUSAL = 4, 3  # ori_mask_mode, cmp_mask_mode
WINDOW_LEFT = 127
RATIOS = (4, 128)


@operator(
    "npu_sparse_attn_sharedkv_metadata",
    namespace="_C_ascend",
    source="vllm-ascend: READMEs of sparse_attn_sharedkv and sparse_attn_sharedkv_metadata",
    limits="""How the work is divided among cores is not documented. Here the tensor holds the
    number of requests, and starts and lengths of as many as fit.""",
)
def npu_sparse_attn_sharedkv_metadata(
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_ori_kv: torch.Tensor | None = None,
    cu_seqlens_cmp_kv: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_kv: torch.Tensor | None = None,
    batch_size: int = 0,
    max_seqlen_q: int = 0,
    max_seqlen_kv: int = 0,
    ori_topk: int = 0,
    cmp_topk: int = 0,
    cmp_ratio: int = 4,
    ori_mask_mode: int = BAND,
    cmp_mask_mode: int = CAUSAL,
    ori_win_left: int = 128,
    ori_win_right: int = 0,
    layout_q: str = "BSND",
    layout_kv: str = "PA_ND",
    has_ori_kv: bool = True,
    has_cmp_kv: bool = True,
    device: str = "npu",
) -> torch.Tensor:
    """How npu_sparse_attn_sharedkv divides its work, int32 (1024,)."""
    if cu_seqlens_q is None or seqused_kv is None:
        raise NotImplementedError(
            "emulated NPU: npu_sparse_attn_sharedkv_metadata is emulated with cu_seqlens_q and "
            "seqused_kv alone"
        )
    return work_of(cu_seqlens_q, seqused_kv)


def work_of(starts: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """What the metadata of requests with these starts and lengths is, int32 (1024,)."""
    fit = min(lengths.shape[0], METADATA_SIZE // 2 - 1)
    made = torch.zeros(METADATA_SIZE, dtype=torch.int32)
    made[0] = lengths.shape[0]
    made[1 : 2 + fit] = starts[: 1 + fit]
    made[METADATA_SIZE - fit :] = lengths[:fit]
    return made


@operator(
    "npu_sparse_attn_sharedkv",
    namespace="_C_ascend",
    source="vllm-ascend: README of sparse_attn_sharedkv; its kernel for which compressed keys a "
    "query sees, (position + 1) // cmp_ratio",
    limits="""float16 or bfloat16, one dtype; q (T, 64, 512); pages (blocks, block size, 1, 512) of
    16 to 1024 tokens (a multiple of 16), which may be strided in the first axis; 512 chosen keys;
    cmp_ratio 4 or 128; a window of 128 (ori_win_left 127, ori_win_right 0), mask modes 4 and 3;
    layouts TND and PA_ND; int32 tables, lengths and metadata of 1024; sinks float32 (64,).""",
    missing="BSND layouts; ori_sparse_indices, seqused_q, return_softmax_lse (without effect)",
)
def npu_sparse_attn_sharedkv(
    q: torch.Tensor,
    *,
    ori_kv: torch.Tensor | None = None,
    cmp_kv: torch.Tensor | None = None,
    ori_sparse_indices: torch.Tensor | None = None,
    cmp_sparse_indices: torch.Tensor | None = None,
    ori_block_table: torch.Tensor | None = None,
    cmp_block_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_ori_kv: torch.Tensor | None = None,
    cu_seqlens_cmp_kv: torch.Tensor | None = None,
    seqused_q: torch.Tensor | None = None,
    seqused_kv: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    metadata: torch.Tensor | None = None,
    softmax_scale: float = 0,
    cmp_ratio: int = 0,
    ori_mask_mode: int = BAND,
    cmp_mask_mode: int = CAUSAL,
    ori_win_left: int = 128,
    ori_win_right: int = 0,
    layout_q: str = "BSND",
    layout_kv: str = "PA_ND",
    return_softmax_lse: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of q (T, N, D), whose keys are their own values, and an empty tensor.

    cu_seqlens_q (B + 1,); seqused_kv (B,): tokens of each request, uncompressed. Keys: those of
    ori_kv at the positions from -ori_win_left to ori_win_right of the query's, and of cmp_kv those
    whose cmp_ratio tokens all are at or before it; cmp_sparse_indices (T, 1, K) may choose of them.
    With metadata of other starts or lengths the output is no number.
    """
    if layout_q != "TND" or layout_kv != "PA_ND" or return_softmax_lse:
        raise NotImplementedError(
            "emulated NPU: npu_sparse_attn_sharedkv is emulated for the layouts TND and PA_ND, "
            "without return_softmax_lse"
        )
    if cu_seqlens_q is None or seqused_kv is None or ori_kv is None or ori_block_table is None:
        raise OperatorArgumentError(
            "cu_seqlens_q, seqused_kv, ori_kv and ori_block_table must all be given"
        )
    bounds, lengths = cu_seqlens_q.tolist(), seqused_kv.tolist()
    output = torch.zeros_like(q)
    for index, length in enumerate(lengths):
        part = slice(bounds[index], bounds[index + 1])
        count = part.stop - part.start
        positions = torch.arange(length - count, length).unsqueeze(1)
        columns = torch.arange(max(0, length - count - ori_win_left), length)
        keys = [rows_at(ori_kv, ori_block_table[index], columns)]
        seen = [(columns >= positions - ori_win_left) & (columns <= positions + ori_win_right)]
        if cmp_kv is not None and cmp_block_table is not None:
            columns = torch.arange(length // cmp_ratio)
            keys.append(rows_at(cmp_kv, cmp_block_table[index], columns))
            chosen = None if cmp_sparse_indices is None else cmp_sparse_indices[part, 0]
            seen.append(complete_keys(positions, columns, cmp_ratio, chosen))
        joined = torch.cat(keys).unsqueeze(1)
        result = attend(q[part], joined, joined, softmax_scale, torch.cat(seen, 1), sinks)
        output[part] = result.output.to(q.dtype)
    return of_these(output, metadata, cu_seqlens_q, seqused_kv), torch.empty(0)


def of_these(
    output: torch.Tensor,
    metadata: torch.Tensor | None,
    starts: torch.Tensor,
    lengths: torch.Tensor,
) -> torch.Tensor:
    """``output``; it is no number if the metadata is of other requests than these."""
    if metadata is None or metadata.equal(work_of(starts, lengths)):
        return output
    return output.fill_(torch.nan)


def complete_keys(
    positions: torch.Tensor, keys: torch.Tensor, ratio: int, chosen: torch.Tensor | None
) -> torch.Tensor:
    """Boolean (queries, keys): which of ``keys`` the queries at ``positions`` (queries, 1) see."""
    complete = keys < (positions + 1) // ratio
    return complete if chosen is None else complete & chosen_mask(chosen, len(keys), 1)


def rows_at(cache: torch.Tensor, table_row: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Rows (positions, D) of a cache (blocks, block size, 1, D); reads only the blocks needed."""
    block_size = cache.shape[1]
    columns = positions // block_size
    if len(columns) and int(columns.max()) >= table_row.shape[0]:
        raise OperatorArgumentError(
            f"position {int(positions.max())} is in block {int(columns.max())}; the block table "
            f"has {table_row.shape[0]} columns"
        )
    used = columns.unique()
    pages = select_pages(cache, table_row[used])
    return pages[torch.searchsorted(used, columns), positions % block_size, 0]


@npu_sparse_attn_sharedkv.check
def _check_sharedkv(given: Arguments) -> None:
    require_dtype("q", given.q, HALF_FLOATS)
    require_shape("q", given.q, (None, HEADS, HEAD_SIZE))
    for name, cache in (("ori_kv", given.ori_kv), ("cmp_kv", given.cmp_kv)):
        if cache is not None:
            require_same_dtype(q=given.q, **{name: cache})
            require_shape(name, cache, (None, None, 1, HEAD_SIZE))
            require_range(f"the block size of {name}", cache.shape[1], 16, 1024)
            require_multiple(f"the block size of {name}", cache.shape[1], 16)
    for name, tensor in (
        ("ori_block_table", given.ori_block_table),
        ("cmp_block_table", given.cmp_block_table),
        ("cu_seqlens_q", given.cu_seqlens_q),
        ("seqused_kv", given.seqused_kv),
        ("metadata", given.metadata),
        ("cmp_sparse_indices", given.cmp_sparse_indices),
    ):
        if tensor is not None:
            require_dtype(name, tensor, (torch.int32,))
    require(given.metadata is not None, "metadata is None; it must be given")
    if given.cmp_sparse_indices is not None:
        require_shape(
            "cmp_sparse_indices", given.cmp_sparse_indices, (given.q.shape[0], 1, CHOSEN_KEYS)
        )
    if given.sinks is not None:
        require_dtype("sinks", given.sinks, (torch.float32,))
        require_shape("sinks", given.sinks, (HEADS,))
    if given.cmp_kv is not None:
        require(given.cmp_ratio in RATIOS, f"cmp_ratio is {given.cmp_ratio}; it must be 4 or 128")
        require(
            given.cmp_mask_mode == CAUSAL, f"cmp_mask_mode is {given.cmp_mask_mode}; it must be 3"
        )
    require(given.ori_mask_mode == BAND, f"ori_mask_mode is {given.ori_mask_mode}; it must be 4")
    require(
        (given.ori_win_left, given.ori_win_right) == (WINDOW_LEFT, 0),
        f"the window is {given.ori_win_left} and {given.ori_win_right}; it must be 127 and 0",
    )
