# SPDX-License-Identifier: Apache-2.0
"""What metadata of one builder may stand in for that of another group or step.

Most of what a metadata builder makes is the same for all groups and all later steps: only block
table, slots, positions and lengths differ. For the builders known here, one built object is copied
shallowly and those fields are replaced. Of a builder that is not known nothing is assumed: it runs
for each of its groups and steps.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.v1.kv_cache_interface import CrossAttentionSpec
from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder
from vllm_ascend.attention.mla_v1 import AscendMLAMetadataBuilder

from mkv_ascend.attention.backends import rope_tables_of
from mkv_ascend.drafting.copying import shallow_copy


@dataclass(frozen=True)
class StepLengths:
    """Lengths of one later step, on the host: int32 [requests] and the same as a list."""

    tensor: torch.Tensor
    values: list[int]


class Sharing(Protocol):
    """How metadata of one builder class is made from what it built once."""

    def reads(self, spec: Any) -> Hashable:
        """What the builder reads of its spec: specs equal in it give the same metadata."""

    def for_group(self, built: Any, table: torch.Tensor, slots: torch.Tensor) -> Any:
        """``built`` for another block table [requests, columns] and slots [rows]."""

    def for_steps(self, builder: Any, built: Any, positions: Sequence[torch.Tensor]) -> list[Any]:
        """``built`` for the later steps at these positions, int32 [requests] each."""

    def with_lengths(self, built: Any, lengths: StepLengths) -> None:
        """Write a step's host lengths into its own metadata."""


class DenseSharing:
    """fused_infer_attention and flash_attention_3: one builder, which takes lengths on the host."""

    def reads(self, spec: Any) -> Hashable:
        return isinstance(spec, CrossAttentionSpec)

    def for_group(self, built: Any, table: torch.Tensor, slots: torch.Tensor) -> Any:
        other = shallow_copy(built)
        other.block_tables, other.slot_mapping = table, slots
        return other

    def for_steps(self, builder: Any, built: Any, positions: Sequence[torch.Tensor]) -> list[Any]:
        return [shallow_copy(built) for _ in positions]

    def with_lengths(self, built: Any, lengths: StepLengths) -> None:
        built.seq_lens = built.seq_lens_cpu = lengths.tensor
        built.seq_lens_list = lengths.values


class LatentSharing:
    """MLA: prefills and decodes have metadata of their own, decodes with their rotary rows."""

    def reads(self, spec: Any) -> Hashable:
        hashable: Hashable = spec
        return hashable

    def for_group(self, built: Any, table: torch.Tensor, slots: torch.Tensor) -> Any:
        other = shallow_copy(built)
        other.block_tables, other.slot_mapping = table, slots
        decodes = built.num_decodes
        if built.decode is not None:
            other.decode = shallow_copy(built.decode)
            other.decode.block_table = table[:decodes]
        if built.prefill is not None:
            other.prefill = shallow_copy(built.prefill)
            other.prefill.block_table = table[decodes:]
        return other

    def for_steps(self, builder: Any, built: Any, positions: Sequence[torch.Tensor]) -> list[Any]:
        requests = positions[0].shape[0]
        tables = rope_tables_of(builder)
        assert tables is not None, "layers of a draft have builders bound to it"
        # One gather for all steps: their rows stand one after another.
        cosines, sines = tables.rows(torch.cat(list(positions)))
        steps = []
        for step, at in enumerate(positions):
            rows = slice(step * requests, (step + 1) * requests)
            other = shallow_copy(built)
            other.decode = shallow_copy(built.decode)
            other.decode.input_positions = at
            other.decode.cos, other.decode.sin = cosines[rows], sines[rows]
            steps.append(other)
        return steps

    def with_lengths(self, built: Any, lengths: StepLengths) -> None:
        built.seq_lens = built.seq_lens_cpu = lengths.tensor
        built.decode.seq_lens = lengths.tensor
        built.decode.seq_lens_list = lengths.values
        built.decode.max_seq_lens = max(lengths.values)


SHARING: dict[type[Any], Sharing] = {
    AscendAttentionMetadataBuilder: DenseSharing(),
    AscendMLAMetadataBuilder: LatentSharing(),
}
"""Builder class -> how its metadata is shared. Subclasses made by ``derive`` only narrow what the
builder sees, so they share as their base."""


def sharing_of(builder: Any) -> Sharing | None:
    """How the builder's metadata is shared; None where nothing is known of it."""
    for base in type(builder).__mro__:
        if base in SHARING:
            return SHARING[base]
    return None
