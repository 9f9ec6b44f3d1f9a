# SPDX-License-Identifier: Apache-2.0
"""What each attention backend is asked for in a draft's passes.

Most of a builder's metadata is equal for all groups and all later passes. Only block table, slots,
positions and lengths differ. For known builders, one built object is copied shallowly and those
fields are replaced. An unknown builder runs for each of its groups and passes.

Implementations of vllm-ascend that take lengths on the host capture each launch as a task that
waits for an event, and later find the lengths in metadata.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.v1.kv_cache_interface import CrossAttentionSpec
from vllm_ascend.attention.attention_v1 import AscendAttentionState
from vllm_ascend.attention.utils import AscendCommonAttentionMetadata

from mkv_ascend.drafting.draft import CosSinRows, HostLengths, LaterPasses, PassBatch, shallow_copy

if TYPE_CHECKING:
    from mkv_ascend.drafting.draft import DraftGroup


@dataclass(frozen=True)
class CommonMetadata:
    """Makes common metadata of a draft's passes.

    Attributes:
        later_state: vllm-ascend's attention state for passes with one token per request.
        lengths_on_host: whether the builder must get lengths on the host (with parallel drafting).
        reads_caches: whether layers have no keys of their own, so that a prefill reads them too.
    """

    later_state: AscendAttentionState
    lengths_on_host: bool = False
    reads_caches: bool = False

    def of(self, batch: PassBatch, *, causal: bool = False) -> Any:
        """Common metadata of a pass, without block table and slots.

        Values that do not depend on the pass are the target's.

        Args:
            causal: whether layers see no later row even of a block of mask tokens.
        """
        target = batch.common
        common: Any = _of_verify_step(batch) if target is None else shallow_copy(target)
        common.num_reqs = batch.requests
        common.num_actual_tokens, common.num_input_tokens = batch.rows, batch.input_rows
        common.query_start_loc = batch.query_start_loc
        common.query_start_loc_cpu = batch.query_start_loc_host
        common.positions = batch.positions
        common.seq_lens = batch.lengths
        if self.lengths_on_host and batch.index == 0:
            common.seq_lens = batch.host_lengths
        common._seq_lens_cpu = common.seq_lens_cpu = batch.host_lengths
        common.seq_lens_cpu_upper_bound = batch.length_bounds
        if batch.index == 0 and batch.causal:
            decodes = common.attn_state is AscendAttentionState.DecodeOnly
            if decodes and batch.longest_row > common.max_query_len:
                # A decode has one token; this one also has the sampled token.
                common.attn_state = AscendAttentionState.ChunkedPrefill
            if self.reads_caches:
                common.attn_state = AscendAttentionState.ChunkedPrefill
        else:
            common.decode_token_per_req = batch.longest_row
            common.graph_pad_size = -1
            common.attn_state = self.later_state
        common.max_query_len = batch.longest_row
        if not batch.causal:
            common.attn_state = AscendAttentionState.ChunkedPrefill
            if not causal:
                common.causal, common.attn_mask = False, None
        return common


def _of_verify_step(batch: PassBatch) -> AscendCommonAttentionMetadata:
    """Common metadata of the made-up verify step of a capture; the caller adds the pass's rows."""
    verified = int(batch.host_lengths[0]) // 2
    return AscendCommonAttentionMetadata(
        query_start_loc=batch.query_start_loc,
        query_start_loc_cpu=batch.query_start_loc_host,
        seq_lens=batch.lengths,
        num_reqs=batch.requests,
        num_actual_tokens=batch.rows,
        num_input_tokens=batch.input_rows,
        max_query_len=batch.longest_row,
        max_seq_len=2 * verified,
        block_table_tensor=batch.tables[0],
        slot_mapping=batch.slots[0],
        positions=batch.positions,
        attn_state=AscendAttentionState.ChunkedPrefill,
        decode_token_per_req=verified,
        is_prefilling=torch.zeros(batch.requests, dtype=torch.bool),
    )


def run_builder(builder: Any, common: Any, draft_index: int, **arguments: Any) -> Any:
    """Run vllm-ascend's builder for the first pass (``draft_index`` 0) or for a later one."""
    if draft_index == 0:
        return builder.build(0, common, **arguments)
    return builder.build_for_drafting(common, draft_index, **arguments)


class Backend:
    """``Builder`` of one attention group, and its launches; this class is for unknown builders.

    ``implementation``: class whose launches are captured, subclasses included. ``unserved``: why
    passes of a builder that ``serves`` refuses are not captured.

    Args:
        builder: vllm-ascend's builder.
        spec: the spec of its layers' cache.
        group: its layers, where a draft runs them.
        common: makes the builder's input that all layers of a draft share.
        of_layers: class of the layers' implementation; None for a cache without attention.
        why_unserved: why its passes are not captured, if there is a reason of its own.
    """

    shares = False
    reads_host_lengths = True
    builds_in_graphs = False
    implementation: type[Any] | None = None
    unserved: str | None = None

    def __init__(
        self,
        builder: Any,
        spec: Any,
        group: DraftGroup | None = None,
        common: CommonMetadata | None = None,
        of_layers: type[Any] | None = None,
        why_unserved: str | None = None,
    ) -> None:
        self.builder, self.spec = builder, spec
        self._group, self._common, self._of_layers = group, common, of_layers
        self._causal = group is not None and group.causal
        self._why_unserved = why_unserved

    @classmethod
    def serves(cls, builder: Any, of_layers: type[Any] | None) -> bool:
        """Whether the metadata of this builder, as configured, can be shared."""
        return True

    def need(self) -> Hashable:
        """Builders that share and are equal in this value build the same metadata."""
        return type(self.builder), self.reads(self.spec), self._causal

    def reads(self, spec: Any) -> Hashable:
        """The part of the spec that the builder reads; equal parts give equal metadata."""
        return isinstance(spec, CrossAttentionSpec)

    def cos_sin_rows(
        self, first: torch.Tensor | None, later: torch.Tensor | None
    ) -> CosSinRows | None:
        """The rows that its layers need, in three launches; None if metadata holds none."""
        return None

    def build(self, batch: PassBatch, slots: torch.Tensor, table: torch.Tensor, rows: Any) -> Any:
        """Build a pass's metadata for ``slots`` int32 [rows] and ``table`` int32 [B, columns]."""
        assert self._common is not None, "a draft runs its layers"
        common = self._common.of(batch, causal=self._causal)
        common.block_table_tensor, common.slot_mapping = table, slots
        built = self.run(common, batch.index, rows)
        if batch.index == 0 and not getattr(built, "causal", True):
            built.attn_mask = None
        return built

    def run(self, common: Any, draft_index: int, rows: Any) -> Any:
        """Run the builder for the pass of ``common``; ``rows`` are those of ``cos_sin_rows``."""
        if draft_index:
            computed = common.seq_lens_cpu - 1
            common.num_computed_tokens_cpu = common._num_computed_tokens_cpu = computed
        return run_builder(self.builder, common, draft_index)

    def for_group(self, built: Any, slots: torch.Tensor, table: torch.Tensor) -> Any:
        """``built`` for a group with other slots [rows] and block table [requests, columns]."""
        raise NotImplementedError("it shares nothing")

    def for_later_passes(self, built: Any, later: LaterPasses, rows: Any) -> list[Any]:
        """``built`` for each of the later passes, without host lengths."""
        raise NotImplementedError("it shares nothing")

    def set_lengths(self, built: Any, lengths: HostLengths) -> None:
        """Write a later pass's host lengths into its own metadata."""
        raise NotImplementedError("it shares nothing")

    def why_not_captured(self, queries: int) -> str | None:
        """Why passes with ``queries`` queries per request are not captured; None if they are."""
        assert self._group is not None, "passes are a draft's"
        name = self._group.backend.__name__
        return self._why_unserved or f"launches of {name} are not captured yet"
