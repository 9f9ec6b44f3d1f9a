# SPDX-License-Identifier: Apache-2.0
"""Kinds of recurrent layers that a draft may have: their metadata and their states."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from mkv_ascend.adapters.common.drafting.layer_groups import kv_group_of, spec_of
from mkv_ascend.drafting.draft import PassBatch
from mkv_ascend.drafting.recurrent_groups import RecurrentGroup, TargetRows
from mkv_ascend.drafting.recurrent_states import RecurrentCaches

if TYPE_CHECKING:
    from mkv_ascend.adapters.common.drafting.common_metadata import CommonMetadata


class GatedDeltaNet:
    """Gated delta rule (Qwen3-Next, Qwen3.5): a convolution and a matrix per head.

    So is Kimi delta attention (KDA), by the same builder: one decay for each channel of a key.
    """

    def why_not(self, layer: Any, speculative: int) -> str | None:
        """KDA's window has room for draft tokens on vLLM 0.30.0, and none on 0.23.0."""
        width = getattr(layer, "conv_kernel_size", None) or getattr(layer, "conv_size", None)
        return _without_room(layer, width, speculative)

    def caches(self, layer: Any) -> RecurrentCaches:
        """vllm-ascend keeps the window as [blocks, rows, channels]."""
        window, state = layer.kv_cache
        return RecurrentCaches((rows_first(window),), (state,))

    def first_pass(self, builder: Any, common: Any, rows: TargetRows) -> Any:
        """Treat rows that run token by token as the builder's speculative decodes."""
        return builder.build(
            0,
            common,
            num_accepted_tokens=rows.ones,
            num_decode_draft_tokens_cpu=rows.row_lengths - 1,
        )

    def finished(self, metadata: Any, rows: TargetRows) -> Any:
        """Give the kernel one block per token, from the builder's 1 + K per row."""
        lengths = rows.row_lengths[rows.row_lengths > 0]
        table = metadata.spec_state_indices_tensor
        if table is None or not bool((lengths < table.shape[1]).any()):
            return metadata
        if bool((lengths == lengths[0]).all()):
            # In a graph, too: nothing is copied from the host.
            metadata.spec_state_indices_tensor = table[:, : int(lengths[0])].flatten()
        else:
            tokens = torch.arange(table.shape[1]) < lengths[:, None]
            places = tokens.flatten().nonzero()[:, 0].to(table.device, non_blocking=True)
            metadata.spec_state_indices_tensor = table.flatten()[places]
        return metadata

    def for_table(self, builder: Any, built: Any, table: torch.Tensor) -> Any:
        """Share as groups of the target do; without states of prefixes, lengths do not matter."""
        # Not with this module, whose other parts need no device.
        from mkv_ascend.adapters.common.drafting.gdn_sharing import GDNSharing

        return GDNSharing(builder).for_table(built, table, lengths=None)


class Convolving:
    """Mamba2: a convolution and a matrix per head; short convolutions (LFM2): that alone.

    Args:
        width: the layer's attribute that says how many tokens its convolution sees.
    """

    def __init__(self, width: str) -> None:
        self._width = width

    def why_not(self, layer: Any, speculative: int) -> str | None:
        """Windows must hold the tokens of a row."""
        return _without_room(layer, getattr(layer, self._width, None), speculative)

    def caches(self, layer: Any) -> RecurrentCaches:
        """The first cache is always the window."""
        window, *states = layer.kv_cache
        return RecurrentCaches((rows_first(window),), tuple(states))

    def first_pass(self, builder: Any, common: Any, rows: TargetRows) -> Any:
        """Treat rows that run token by token as the builder's decodes.

        Raises:
            RuntimeError: these rows do not come first.
        """
        metadata = builder.build(0, common, num_accepted_tokens=rows.ones)
        if metadata.num_decodes != int((rows.row_lengths > 0).sum()):
            raise RuntimeError(
                f"{type(builder).__name__} takes the first {metadata.num_decodes} rows for "
                f"decodes, and the rows to be run token by token have lengths "
                f"{rows.row_lengths.tolist()}: the runner has not sorted its batch. Report this"
            )
        return metadata

    def finished(self, metadata: Any, rows: TargetRows) -> Any:
        """Nothing to complete."""
        return metadata

    def for_table(self, builder: Any, built: Any, table: torch.Tensor) -> Any:
        """Decodes get all columns that they may use, prefills only the first."""
        decodes = built.num_decodes
        return replace(
            built,
            state_indices_tensor_d=table[:decodes, : built.state_indices_tensor_d.shape[1]],
            state_indices_tensor_p=table[decodes:, 0],
        )


def _without_room(layer: Any, width: int | None, speculative: int) -> str | None:
    """The reason if the layer's window has no room for draft tokens."""
    if width is not None and width - 1 + speculative in next(iter(layer.get_state_shape())):
        return None
    return (
        f"{type(layer).__name__} keeps as many inputs of its convolution as one token needs, "
        f"and not those of {speculative} draft tokens besides"
    )


def rows_first(window: torch.Tensor) -> torch.Tensor:
    """A convolution's cache as [blocks, rows, channels], however it is stored."""
    # Not with this module, whose other parts need no device.
    from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

    return window.transpose(1, 2) if is_conv_state_dim_first() else window


RecurrentKind = GatedDeltaNet | Convolving
"""How metadata of recurrent layers is built, where their states lie, and which are served."""

RECURRENT_KINDS: dict[MambaAttentionBackendEnum, RecurrentKind] = {
    MambaAttentionBackendEnum.GDN_ATTN: GatedDeltaNet(),
    MambaAttentionBackendEnum.MAMBA2: Convolving("conv_kernel_size"),
    MambaAttentionBackendEnum.SHORT_CONV: Convolving("L_cache"),
}
"""vLLM's kinds of recurrent layers that a draft may have."""


def refuse_unknown_kinds(layers: Mapping[str, Any], speculative: int) -> None:
    """Refuse recurrent layers whose state cannot return to the last accepted token.

    Args:
        layers: the draft's recurrent layers by name.
        speculative: draft tokens of one proposal.

    Raises:
        NotImplementedError: a layer is of another kind than ``RECURRENT_KINDS``, or a form of it
            that is not served.
    """
    for name, layer in layers.items():
        kind = RECURRENT_KINDS.get(layer.mamba_type)
        known = ", ".join(kind.name for kind in RECURRENT_KINDS)
        reason = (
            f"its kind is {layer.mamba_type}, and this release knows {known}"
            if kind is None
            else kind.why_not(layer, speculative)
        )
        if reason is not None:
            raise NotImplementedError(
                f"the draft keeps a recurrent state in {name}, which cannot be taken back where "
                f"tokens are rejected: {reason}. Choose a draft of other layers, such as attention."
            )


@dataclass(frozen=True)
class KindBuilder:
    """``RecurrentBuilder`` of one group, by vLLM's builder and the kind of its layers.

    Attributes:
        kind: builds the metadata.
        builder: vLLM's builder, made with the draft's configuration.
        spec: the layers' ``MambaSpec``.
        common: makes the builder's input that all layers share.
    """

    kind: RecurrentKind
    builder: Any
    spec: Any
    common: CommonMetadata

    def need(self) -> Hashable:
        """See ``RecurrentBuilder``."""
        return type(self.builder), self.spec

    def first_pass(self, batch: PassBatch, table: torch.Tensor, rows: TargetRows) -> Any:
        """See ``RecurrentBuilder``."""
        return self.kind.first_pass(self.builder, self._own(batch, table, rows.begins), rows)

    def finished(self, built: Any, rows: TargetRows) -> Any:
        """See ``RecurrentBuilder``."""
        return self.kind.finished(built, rows)

    def later_pass(self, batch: PassBatch, table: torch.Tensor, begins: torch.Tensor) -> Any:
        """See ``RecurrentBuilder``."""
        return self.builder.build(0, self._own(batch, table, begins))

    def for_table(self, built: Any, table: torch.Tensor) -> Any:
        """See ``RecurrentBuilder``."""
        return self.kind.for_table(self.builder, built, table)

    def _own(self, batch: PassBatch, table: torch.Tensor, begins: torch.Tensor) -> Any:
        """Common metadata for builders of recurrent layers.

        Their treatment of rows that vLLM calls prefilling depends on the length of a row. Here
        only rows that begin a state count as prefilling.
        """
        common = self.common.of(batch)
        common.is_prefilling, common.block_table_tensor = begins, table
        common._num_computed_tokens_cache = None
        return common


def find_recurrent_groups(
    layers: Mapping[str, Any],
    kv_cache_groups: Sequence[Any],
    config: Any,
    device: Any,
    common: CommonMetadata,
) -> tuple[RecurrentGroup, ...]:
    """Sort recurrent layers into groups and make their builders.

    Args:
        layers: the draft's recurrent layers by name.
        kv_cache_groups: vLLM's ``KVCacheGroupSpec`` of the engine.
        config: the draft's configuration, which the builders get.
        common: makes what builders take for all layers.

    Raises:
        ValueError: a layer lies in no KV group.
    """
    members: dict[Any, dict[str, Any]] = {}
    for name, layer in layers.items():
        kv_group = kv_group_of(name, kv_cache_groups)
        spec = spec_of(name, kv_cache_groups[kv_group].kv_cache_spec)
        members.setdefault((kv_group, layer.get_attn_backend(), spec), {})[name] = layer
    groups = []
    for (kv_group, backend, spec), found in members.items():
        kind = RECURRENT_KINDS[spec.mamba_type]
        builder = backend.get_builder_cls()(spec, list(found), config, device)
        caches = functools.partial(_caches, kind, tuple(found.values()))
        groups.append(
            RecurrentGroup(kv_group, KindBuilder(kind, builder, spec, common), tuple(found), caches)
        )
    return tuple(groups)


def _caches(kind: RecurrentKind, layers: Sequence[Any]) -> list[RecurrentCaches]:
    return [kind.caches(layer) for layer in layers]
