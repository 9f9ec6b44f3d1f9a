# SPDX-License-Identifier: Apache-2.0
"""MLA: prefills and decodes have separate metadata, each with its rows of cosines and sines.

Its prefill keeps the dtype of the model and of the cache. vllm-ascend 0.23.0 converts queries, keys
and values of an MLA prefill to bfloat16 whatever the model's dtype is, and then gathers the cached
context (chunked prefill, prefix cache) into a buffer of the *queries'* dtype: with a float16 or
float32 cache the gather writes rows of another width.

* The context is gathered and attended to in the cache's dtype.
* A float32 prefill stays float32. Only the emulated NPU takes it, in the mode that compares tokens
  with a float32 reference; there the rounding to bfloat16 would be what is measured.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch_npu
from vllm_ascend.attention.mla_v1 import AscendMLAImpl

from mkv_ascend.adapters.common.attention.derived import derive
from mkv_ascend.adapters.common.attention.records import IN_DTYPE_OF_CACHE
from mkv_ascend.adapters.common.attention.rope_tables import RopeTables, rope_tables_of
from mkv_ascend.adapters.common.backends.dense import Dense
from mkv_ascend.adapters.common.backends.port import run_builder
from mkv_ascend.drafting.draft import HostLengths, LaterPasses, shallow_copy


@functools.cache
def implementation(base: type[Any]) -> type[Any]:
    """vllm-ascend's implementation ``base`` with its prefill corrected."""

    def compute_prefill_context(
        self: Any,
        q_nope: torch.Tensor,
        q_pe: torch.Tensor,
        kv_c_and_k_pe_cache: tuple[torch.Tensor, ...],
        *args: Any,
    ) -> Any:
        dtype = kv_c_and_k_pe_cache[0].dtype
        if dtype.is_floating_point and dtype.itemsize > 1:
            q_nope, q_pe = q_nope.to(dtype), q_pe.to(dtype)
        return base._compute_prefill_context(self, q_nope, q_pe, kv_c_and_k_pe_cache, *args)

    def forward_prefill(self: Any, q_nope: torch.Tensor, *args: Any) -> torch.Tensor:
        if q_nope.dtype is torch.float32:
            return _forward_prefill_in_float32(self, q_nope, *args)
        result: torch.Tensor = base._forward_prefill(self, q_nope, *args)
        return result

    members = {
        "_compute_prefill_context": compute_prefill_context,
        "_forward_prefill": forward_prefill,
    }
    return derive(base, "", members, IN_DTYPE_OF_CACHE)


def _forward_prefill_in_float32(
    self: Any,
    q_nope: torch.Tensor,
    q_pe: torch.Tensor,
    k_nope: torch.Tensor,
    k_pe: torch.Tensor,
    value: torch.Tensor,
    kv_cache: tuple[torch.Tensor, ...],
    attn_metadata: Any,
) -> torch.Tensor:
    """Attend from new tokens to new tokens, then merge with the cached context.

    Shapes: q_nope and k_nope [tokens, heads, 128], q_pe and k_pe [tokens, heads, 64], value
    [tokens, heads, 128]. Returns [tokens, heads * 128].
    """
    prefill = attn_metadata.prefill
    lengths = prefill.actual_seq_lengths_q
    if self.head_padding > 0:
        query, key = torch.cat((q_nope, q_pe), -1), torch.cat((k_nope, k_pe), -1)
        ropes = {}
    else:
        query, key = q_nope, k_nope
        ropes = {"query_rope": q_pe, "key_rope": k_pe.contiguous()}
    output, log_sum = torch_npu.npu_fused_infer_attention_score(
        query,
        key.contiguous(),
        value.contiguous(),
        num_heads=self.num_heads,
        num_key_value_heads=self.num_heads,
        input_layout="TND",
        atten_mask=prefill.attn_mask,
        sparse_mode=3,
        scale=self.scale,
        softmax_lse_flag=True,
        actual_seq_lengths=lengths,
        actual_seq_lengths_kv=list(lengths),
        **ropes,
    )
    output, _ = self._compute_prefill_context(
        q_nope, q_pe, kv_cache, self.qk_rope_head_dim, attn_metadata, output, log_sum
    )
    result: torch.Tensor = output.reshape(q_nope.shape[0], -1)
    return result


@dataclass(frozen=True)
class GatheredRows:
    """Rows of cosines and sines for all passes of a proposal, for layers of MLA, sparse or not.

    Attributes:
        cosines, sines: [rows, 1, 1, rope dimension], of the first pass and then of each later pass.
        first: rows of the first pass.
        later: rows of each later pass.
        tables: the tables that the rows come from.
        positions: int32 buffers of the proposal, of the first pass and of the later passes, if any.
    """

    cosines: torch.Tensor
    sines: torch.Tensor
    first: int
    later: int
    tables: RopeTables
    positions: tuple[torch.Tensor, ...]

    def for_pass(self, index: int, requests: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines of the live rows of a later pass."""
        start = self.first + index * self.later
        return self.cosines[start : start + requests], self.sines[start : start + requests]

    def regather(self) -> None:
        """Select the rows at the current positions anew, into the same memory; runs in a graph."""
        self.tables.rows(_joined(self.positions), out=(self.cosines, self.sines))


def _joined(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    flat = [part.flatten() for part in parts]
    return flat[0] if len(flat) == 1 else torch.cat(flat)


class MLA(Dense):
    """MLA, of which decodes are captured alone; prefills are launched without a task."""

    implementation = AscendMLAImpl
    prefills: str | None = "a prefill to MLA, whose decodes"

    def reads(self, spec: Any) -> Any:
        """All of it."""
        return spec

    def cos_sin_rows(
        self, first: torch.Tensor | None, later: torch.Tensor | None
    ) -> GatheredRows | None:
        tables = rope_tables_of(self.builder)
        positions = tuple(part for part in (first, later) if part is not None)
        return GatheredRows(
            *tables.rows(_joined(positions)),
            first=0 if first is None else first.shape[0],
            later=0 if later is None else later.shape[1],
            tables=tables,
            positions=positions,
        )

    def run(self, common: Any, draft_index: int, rows: GatheredRows) -> Any:
        """Build without the builder's launches; no layer reads positions or starts from metadata.

        ``for_later_passes`` inserts the rows of later passes.
        """
        own = shallow_copy(common)
        # Both on the host, positions as int64: the builder converts these and subtracts starts.
        own.positions = host_zeros(common.num_actual_tokens)
        own.query_start_loc = common.query_start_loc_cpu
        with rope_tables_of(self.builder).with_deferred_rows():
            built = run_builder(self.builder, own, draft_index)
        built.query_start_loc = common.query_start_loc
        if draft_index == 0:
            _put_in_rows(built, common.positions, rows)
        return built

    def for_group(self, built: Any, slots: torch.Tensor, table: torch.Tensor) -> Any:
        other = super().for_group(built, slots, table)
        decodes = built.num_decodes
        if built.decode is not None:
            other.decode = shallow_copy(built.decode)
            other.decode.block_table = table[:decodes]
        if built.prefill is not None:
            other.prefill = shallow_copy(built.prefill)
            other.prefill.block_table = table[decodes:]
        return other

    def for_later_passes(self, built: Any, later: LaterPasses, rows: GatheredRows) -> list[Any]:
        made = []
        for index, at in enumerate(later.request_positions):
            other = shallow_copy(built)
            decode = other.decode = shallow_copy(built.decode)
            decode.input_positions = at
            decode.cos, decode.sin = rows.for_pass(index, at.shape[0])
            made.append(other)
        return made

    def set_lengths(self, built: Any, lengths: HostLengths) -> None:
        built.seq_lens = built.seq_lens_cpu = lengths.tensor
        built.decode.seq_lens = lengths.tensor
        built.decode.seq_lens_list = lengths.values
        built.decode.max_seq_lens = max(lengths.values)

    def tokens(self, metadata: Any) -> int:
        """Queries of its decodes; there are no others."""
        return super().tokens(metadata.decode)

    def with_lengths(self, metadata: Any, lengths: list[int]) -> Any:
        """As for the base class; lengths are part of the decodes' metadata."""
        given = shallow_copy(metadata)
        given.decode = super().with_lengths(metadata.decode, lengths)
        return given


def host_zeros(count: int) -> torch.Tensor:
    """Positions for builders that convert them and select rows: on the host, int64 [count]."""
    return _HOST_ZERO.expand(count)


_HOST_ZERO = torch.zeros(1, dtype=torch.int64)


def _put_in_rows(built: Any, positions: torch.Tensor, cos_sin: GatheredRows) -> None:
    """Insert positions, cosines and sines of a first pass; decodes come before prefills."""
    decodes, rows = built.num_decode_tokens, built.num_actual_tokens
    for part, part_rows in (
        (built.decode, slice(0, decodes)),
        (built.prefill, slice(decodes, rows)),
    ):
        if part is not None:
            part.input_positions = positions[part_rows]
            part.cos, part.sin = cos_sin.cosines[part_rows], cos_sin.sines[part_rows]
