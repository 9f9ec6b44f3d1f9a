# SPDX-License-Identifier: Apache-2.0
"""How metadata that a builder made once serves other groups and passes.

Most of a builder's metadata is equal for all groups and all later passes. Only block table, slots,
positions and lengths differ. For the builders known here, one built object is copied shallowly and
those fields are replaced. An unknown builder runs for each of its groups and passes.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.v1.kv_cache_interface import CrossAttentionSpec
from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder
from vllm_ascend.attention.dsa_v1 import AscendDSAMetadataBuilder
from vllm_ascend.attention.mla_v1 import AscendMLAMetadataBuilder

from mkv_ascend.adapters.common.attention.backends import rope_tables_of
from mkv_ascend.adapters.common.attention.rope_tables import RopeTables
from mkv_ascend.adapters.common.drafting.common_metadata import CommonMetadata
from mkv_ascend.drafting.copying import shallow_copy
from mkv_ascend.drafting.draft import CosSinRows, HostLengths, LaterPasses, PassBatch
from mkv_ascend.drafting.groups import DraftGroup


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


def run_builder(builder: Any, common: Any, draft_index: int) -> Any:
    """Run vllm-ascend's builder for a pass of the draft."""
    arguments = _arguments_of_caller(builder)
    if draft_index == 0:
        return builder.build(0, common, **arguments)
    return builder.build_for_drafting(common, draft_index, **arguments)


def _arguments_of_caller(builder: Any) -> dict[str, Any]:
    """Arguments in which DeepSeek-V4's builders keep what layers of several ratios share.

    The layer that drafts has one ratio, so a new pass shares nothing.
    """
    if not isinstance(builder, AscendDSAMetadataBuilder):
        return {}
    shared = ("prefill", "decode", "common")
    return {
        "block_size": builder.kv_cache_spec.block_size,
        **{f"{part}_ratio_to_sas_metadata": {} for part in shared},
    }


class Sharing:
    """How metadata of one builder class is made from what it built once.

    This class is for fused_infer_attention, which takes lengths on the host.

    ``shares``, ``reads_host_lengths``, ``builds_in_graphs``: see ``Builder``.
    """

    shares = True
    reads_host_lengths = True
    builds_in_graphs = False

    def serves(self, builder: Any) -> bool:
        """Whether the metadata of this builder, as configured, can be shared."""
        return True

    def reads(self, spec: Any) -> Hashable:
        """The part of the spec that the builder reads; equal parts give equal metadata."""
        return isinstance(spec, CrossAttentionSpec)

    def cos_sin_rows(
        self, builder: Any, first: torch.Tensor | None, later: torch.Tensor | None
    ) -> GatheredRows | None:
        """The rows that its layers need, in three launches; None if metadata holds none.

        Args:
            first: positions of the first pass, int32 [rows].
            later: positions of the later passes, int32 [K - 1, rows].
        """
        return None

    def build(
        self, builder: Any, common: Any, draft_index: int, cos_sin: GatheredRows | None
    ) -> Any:
        """Run the builder for the first pass (``draft_index`` 0) or for a later one."""
        return run_builder(builder, common, draft_index)

    def block_table(self, built: Any) -> torch.Tensor:
        """The block table in ``built``, int32 [requests, columns]; for MLA that of the decodes."""
        table: torch.Tensor = built.block_tables
        return table

    def for_group(self, built: Any, table: torch.Tensor, slots: torch.Tensor) -> Any:
        """``built`` for another block table [requests, columns] and slots [rows]."""
        other = shallow_copy(built)
        other.block_tables, other.slot_mapping = table, slots
        return other

    def for_later_passes(
        self, built: Any, later: LaterPasses, cos_sin: GatheredRows | None
    ) -> list[Any]:
        """``built`` for each of the later passes."""
        return [shallow_copy(built) for _ in later.positions]

    def set_lengths(self, built: Any, lengths: HostLengths) -> None:
        """Write a later pass's host lengths into its own metadata."""
        built.seq_lens = built.seq_lens_cpu = lengths.tensor
        built.seq_lens_list = lengths.values


class MLASharing(Sharing):
    """MLA: prefills and decodes have separate metadata, each with its rows of cosines and sines."""

    def reads(self, spec: Any) -> Hashable:
        hashable: Hashable = spec
        return hashable

    def cos_sin_rows(
        self, builder: Any, first: torch.Tensor | None, later: torch.Tensor | None
    ) -> GatheredRows | None:
        tables = rope_tables_of(builder)
        assert tables is not None, "layers of a draft have builders bound to it"
        positions = tuple(part for part in (first, later) if part is not None)
        return GatheredRows(
            *tables.rows(_joined(positions)),
            first=0 if first is None else first.shape[0],
            later=0 if later is None else later.shape[1],
            tables=tables,
            positions=positions,
        )

    def build(
        self, builder: Any, common: Any, draft_index: int, cos_sin: GatheredRows | None
    ) -> Any:
        """Build without the builder's launches; no layer reads positions or starts from metadata.

        ``for_later_passes`` inserts the rows of later passes.
        """
        tables = rope_tables_of(builder)
        assert tables is not None
        assert cos_sin is not None
        own = shallow_copy(common)
        # Both on the host, positions as int64: the builder converts these and subtracts starts.
        own.positions = host_zeros(common.num_actual_tokens)
        own.query_start_loc = common.query_start_loc_cpu
        with tables.with_deferred_rows():
            built = run_builder(builder, own, draft_index)
        built.query_start_loc = common.query_start_loc
        if draft_index == 0:
            _put_in_rows(built, common.positions, cos_sin)
        return built

    def for_group(self, built: Any, table: torch.Tensor, slots: torch.Tensor) -> Any:
        other = super().for_group(built, table, slots)
        decodes = built.num_decodes
        if built.decode is not None:
            other.decode = shallow_copy(built.decode)
            other.decode.block_table = table[:decodes]
        if built.prefill is not None:
            other.prefill = shallow_copy(built.prefill)
            other.prefill.block_table = table[decodes:]
        return other

    def for_later_passes(
        self, built: Any, later: LaterPasses, cos_sin: GatheredRows | None
    ) -> list[Any]:
        assert cos_sin is not None
        made = []
        for index, at in enumerate(later.request_positions):
            other = shallow_copy(built)
            decode = other.decode = shallow_copy(built.decode)
            decode.input_positions = at
            decode.cos, decode.sin = cos_sin.for_pass(index, at.shape[0])
            made.append(other)
        return made

    def set_lengths(self, built: Any, lengths: HostLengths) -> None:
        built.seq_lens = built.seq_lens_cpu = lengths.tensor
        built.decode.seq_lens = lengths.tensor
        built.decode.seq_lens_list = lengths.values
        built.decode.max_seq_lens = max(lengths.values)


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


class SparseMLASharing(MLASharing):
    """Sparse MLA: one metadata object for prefills and decodes, with lengths on the device."""

    reads_host_lengths = False

    def build(
        self, builder: Any, common: Any, draft_index: int, cos_sin: GatheredRows | None
    ) -> Any:
        """Build without selecting rows of cosines and sines; see ``for_later_passes``."""
        assert cos_sin is not None
        own = shallow_copy(common)
        # On the host and int64 already, because the builder converts them.
        own.positions = host_zeros(common.num_input_tokens)
        built = self.run(builder, own, draft_index)
        if draft_index == 0:
            built.cos, built.sin = cos_sin.cosines[: cos_sin.first], cos_sin.sines[: cos_sin.first]
        return built

    def run(self, builder: Any, common: Any, draft_index: int) -> Any:
        """Run the builder, which selects no rows of cosines and sines then."""
        tables = rope_tables_of(builder)
        assert tables is not None, "layers of a draft have builders bound to it"
        with tables.with_deferred_rows():
            return run_builder(builder, common, draft_index)

    def block_table(self, built: Any) -> torch.Tensor:
        table: torch.Tensor = built.block_table
        return table

    def for_group(self, built: Any, table: torch.Tensor, slots: torch.Tensor) -> Any:
        other = shallow_copy(built)
        other.block_table, other.slot_mapping = table, slots
        return other

    def for_later_passes(
        self, built: Any, later: LaterPasses, cos_sin: GatheredRows | None
    ) -> list[Any]:
        assert cos_sin is not None
        made = []
        for index, lengths in enumerate(later.lengths):
            other = shallow_copy(built)
            # Nothing reads those on the host: they are not copied there.
            other.seq_lens, other.seq_lens_cpu = lengths, None
            other.cos, other.sin = cos_sin.for_pass(index, lengths.shape[0])
            made.append(other)
        return made


class WindowOfKeysSharing(Sharing):
    """DeepSeek-V4's layers of uncompressed keys, such as the one of its MTP head.

    Each pass has rows of cosines and sines, and a division of the operator's work, which launches
    of the builder make in buffers of the pass. Nothing of it serves another pass.
    """

    shares = False
    reads_host_lengths = False
    builds_in_graphs = True

    def build(
        self, builder: Any, common: Any, draft_index: int, cos_sin: GatheredRows | None
    ) -> Any:
        """Run the builder; of the lengths it takes only the largest on the host, as a bound."""
        own = shallow_copy(common)
        own._seq_lens_cpu = own.seq_lens_cpu = common.seq_lens_cpu_upper_bound
        return run_builder(builder, own, draft_index)


SHARING: dict[type[Any], Sharing] = {
    AscendAttentionMetadataBuilder: Sharing(),
    AscendMLAMetadataBuilder: MLASharing(),
    AscendDSAMetadataBuilder: WindowOfKeysSharing(),
}
"""Builder class -> how its metadata is made, on all hosts.

Subclasses made by ``derive`` only narrow what the builder sees, so they share like their base."""


def find(sharing: Mapping[type[Any], Sharing], builder: Any) -> Sharing | None:
    """How the builder's metadata is shared, by its class; None for an unknown builder."""
    for base in type(builder).__mro__:
        if base in sharing:
            return sharing[base] if sharing[base].serves(builder) else None
    return None


class GroupBuilder:
    """``Builder`` of one attention group, around vllm-ascend's builder.

    Args:
        builder: vllm-ascend's builder.
        group: its layers.
        common: makes the builder's input that all layers share.
        sharing: how the builder's metadata is shared; None for an unknown builder.
    """

    def __init__(
        self, builder: Any, group: DraftGroup, common: CommonMetadata, sharing: Sharing | None
    ) -> None:
        self._builder, self._spec, self._common = builder, group.spec, common
        self._causal = group.causal
        self._sharing = sharing
        self.shares = sharing is not None and sharing.shares
        self.reads_host_lengths = sharing is None or sharing.reads_host_lengths
        self.builds_in_graphs = sharing is not None and sharing.builds_in_graphs

    def need(self) -> Hashable:
        """See ``Builder``."""
        return type(self._builder), self._known.reads(self._spec), self._causal

    def cos_sin_rows(
        self, first: torch.Tensor | None, later: torch.Tensor | None
    ) -> CosSinRows | None:
        """See ``Builder``."""
        sharing = self._sharing
        return None if sharing is None else sharing.cos_sin_rows(self._builder, first, later)

    def build(
        self, batch: PassBatch, slots: torch.Tensor, table: torch.Tensor, rows: CosSinRows | None
    ) -> Any:
        """See ``Builder``."""
        common = self._common.of(batch, causal=self._causal)
        common.block_table_tensor, common.slot_mapping = table, slots
        if self._sharing is None:
            if batch.index:
                computed = batch.host_lengths - 1
                common.num_computed_tokens_cpu = common._num_computed_tokens_cpu = computed
            built = run_builder(self._builder, common, batch.index)
        else:
            gathered = rows if isinstance(rows, GatheredRows) else None
            built = self._sharing.build(self._builder, common, batch.index, gathered)
        if batch.index == 0 and not getattr(built, "causal", True):
            built.attn_mask = None
        return built

    def for_group(self, built: Any, slots: torch.Tensor, table: torch.Tensor) -> Any:
        """See ``Builder``."""
        return self._known.for_group(built, table, slots)

    def for_later_passes(
        self, built: Any, later: LaterPasses, rows: CosSinRows | None
    ) -> list[Any]:
        """See ``Builder``."""
        gathered = rows if isinstance(rows, GatheredRows) else None
        return self._known.for_later_passes(built, later, gathered)

    def set_lengths(self, built: Any, lengths: HostLengths) -> None:
        """See ``Builder``."""
        self._known.set_lengths(built, lengths)

    @property
    def _known(self) -> Sharing:
        assert self._sharing is not None, "it was asked whether it shares"
        return self._sharing
