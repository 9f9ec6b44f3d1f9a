# SPDX-License-Identifier: Apache-2.0
"""Kinds of recurrent layers a draft may have: how metadata is built and where its states lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from vllm.v1.attention.backends.registry import MambaAttentionBackendEnum

from mkv_ascend.drafting.states import StateCaches


@dataclass(frozen=True)
class CatchUp:
    """The rows of the pass in which a draft sees what the target has just seen.

    Attributes:
        row_lengths: tokens of each row that is run token by token, keeping the state after each;
            0 for rows that are run as a prefill. int32 [B] on the host.
        ones: int32 [B] on the device: every row starts from its block 0.
    """

    row_lengths: torch.Tensor
    ones: torch.Tensor


class StateKind(Protocol):
    """What differs by kind."""

    def why_not(self, layer: Any, speculative: int) -> str | None:
        """Why the layer cannot be served with so many draft tokens; None: it can."""

    def caches(self, layer: Any) -> StateCaches:
        """The layer's caches."""

    def catch_up(self, builder: Any, common: Any, rows: CatchUp) -> Any:
        """Metadata of the catch-up pass, but for ``finished``."""

    def finished(self, metadata: Any, rows: CatchUp) -> Any:
        """Metadata of the catch-up pass, as the kernels want it."""

    def for_table(self, builder: Any, built: Any, table: torch.Tensor) -> Any:
        """What ``builder`` has just built, for a group with another block table [B, columns]."""


class GatedDeltaNet:
    """Gated delta rule (Qwen3-Next, Qwen3.5): a convolution and a matrix per head."""

    def why_not(self, layer: Any, speculative: int) -> str | None:
        """Layers of other rules (KDA) have this kind's builder, but no room in their window."""
        return _without_room(layer, getattr(layer, "conv_kernel_size", None), speculative)

    def caches(self, layer: Any) -> StateCaches:
        """vllm-ascend keeps the window as [blocks, rows, channels]."""
        window, state = layer.kv_cache
        return StateCaches((rows_first(window),), (state,))

    def catch_up(self, builder: Any, common: Any, rows: CatchUp) -> Any:
        """Rows that are run token by token are the builder's speculative decodes."""
        return builder.build(
            0,
            common,
            num_accepted_tokens=rows.ones,
            num_decode_draft_tokens_cpu=rows.row_lengths - 1,
        )

    def finished(self, metadata: Any, rows: CatchUp) -> Any:
        """The kernel wants a block for each token, the builder gives 1 + K for each row."""
        lengths = rows.row_lengths[rows.row_lengths > 0]
        table = metadata.spec_state_indices_tensor
        if table is not None and bool((lengths < table.shape[1]).any()):
            tokens = torch.arange(table.shape[1]) < lengths[:, None]
            places = tokens.flatten().nonzero()[:, 0].to(table.device, non_blocking=True)
            metadata.spec_state_indices_tensor = table.flatten()[places]
        return metadata

    def for_table(self, builder: Any, built: Any, table: torch.Tensor) -> Any:
        """As between groups of the target; lengths do not matter without states of prefixes."""
        # Not with this module, whose other parts need no device.
        from mkv_ascend.drafting.shared_states import StateSharing

        return StateSharing(builder).for_table(built, table, lengths=None)


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

    def caches(self, layer: Any) -> StateCaches:
        """The window is always first."""
        window, *states = layer.kv_cache
        return StateCaches((rows_first(window),), tuple(states))

    def catch_up(self, builder: Any, common: Any, rows: CatchUp) -> Any:
        """Rows that are run token by token are the builder's decodes, which must come first.

        Raises:
            RuntimeError: they do not.
        """
        metadata = builder.build(0, common, num_accepted_tokens=rows.ones)
        if metadata.num_decodes != int((rows.row_lengths > 0).sum()):
            raise RuntimeError(
                f"{type(builder).__name__} takes the first {metadata.num_decodes} rows for "
                f"decodes, and the rows to be run token by token have lengths "
                f"{rows.row_lengths.tolist()}: the runner has not sorted its batch. Report this"
            )
        return metadata

    def finished(self, metadata: Any, rows: CatchUp) -> Any:
        """As it was built."""
        return metadata

    def for_table(self, builder: Any, built: Any, table: torch.Tensor) -> Any:
        """Decodes have all columns they may use, prefills the first."""
        decodes = built.num_decodes
        return replace(
            built,
            state_indices_tensor_d=table[:decodes, : built.state_indices_tensor_d.shape[1]],
            state_indices_tensor_p=table[decodes:, 0],
        )


def _without_room(layer: Any, width: int | None, speculative: int) -> str | None:
    """What is wrong if the layer's window has no room for draft tokens."""
    if width is not None and width - 1 + speculative in next(iter(layer.get_state_shape())):
        return None
    return (
        f"{type(layer).__name__} keeps as many inputs of its convolution as one token needs, "
        f"and not those of {speculative} draft tokens besides"
    )


def rows_first(window: torch.Tensor) -> torch.Tensor:
    """A convolution's cache as [blocks, rows, channels], whichever way it is kept."""
    # Not with this module, whose other parts need no device.
    from vllm.model_executor.layers.mamba.mamba_utils import is_conv_state_dim_first

    return window.transpose(1, 2) if is_conv_state_dim_first() else window


STATE_KINDS: dict[MambaAttentionBackendEnum, StateKind] = {
    MambaAttentionBackendEnum.GDN_ATTN: GatedDeltaNet(),
    MambaAttentionBackendEnum.MAMBA2: Convolving("conv_kernel_size"),
    MambaAttentionBackendEnum.SHORT_CONV: Convolving("L_cache"),
}
"""vLLM's kinds of recurrent layers that a draft may have."""


def refuse_unknown_states(layers: Mapping[str, Any], speculative: int) -> None:
    """Refuse recurrent layers whose state cannot follow acceptance.

    Args:
        layers: the draft's recurrent layers by name.
        speculative: draft tokens of one proposal.

    Raises:
        NotImplementedError: a layer is of another kind than ``STATE_KINDS``, or a form of its kind
            that is not served.
    """
    for name, layer in layers.items():
        kind = STATE_KINDS.get(layer.mamba_type)
        known = ", ".join(kind.name for kind in STATE_KINDS)
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
