# SPDX-License-Identifier: Apache-2.0
"""What each kind of recurrent layers is asked for in a draft's passes, and those that convolve."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from mkv_ascend.drafting.draft import PassBatch
from mkv_ascend.drafting.recurrent_groups import RecurrentCaches, TargetRows

if TYPE_CHECKING:
    from mkv_ascend.adapters.common.backends.port import CommonMetadata


class RecurrentBackend:
    """``RecurrentBuilder`` of one group of layers; one class derives from it for each kind.

    ``width``: the layer's attribute that says how many tokens its convolution sees.

    Args:
        builder: vLLM's builder, made with the draft's configuration.
        spec: the layers' ``MambaSpec``.
        common: makes the builder's input that all layers of a draft share.
    """

    width: ClassVar[str]

    def __init__(self, builder: Any, spec: Any, common: CommonMetadata | None = None) -> None:
        self.builder, self.spec, self._common = builder, spec, common

    @classmethod
    def why_not(cls, layer: Any, speculative: int) -> str | None:
        """Why a layer of this kind is not served; None if its window holds the tokens of a row."""
        return without_room(layer, getattr(layer, cls.width, None), speculative)

    @classmethod
    def caches(cls, layer: Any) -> RecurrentCaches:
        """The caches of a layer, of which the first is the window."""
        window, *states = layer.kv_cache
        return RecurrentCaches((rows_first(window),), tuple(states))

    def need(self) -> Hashable:
        """Builders equal in this differ only in the rows of the block table."""
        return type(self.builder), self.spec

    def first_pass(self, batch: PassBatch, table: torch.Tensor, rows: TargetRows) -> Any:
        """Metadata of the pass over the target's own rows; ``finished`` completes it."""
        return self.run_first(self._own(batch, table, rows.begins), rows)

    def run_first(self, common: Any, rows: TargetRows) -> Any:
        """Run the builder for that pass; it treats rows that run token by token as decodes.

        Raises:
            RuntimeError: these rows do not come first.
        """
        metadata = self.builder.build(0, common, num_accepted_tokens=rows.ones)
        if metadata.num_decodes != int((rows.row_lengths > 0).sum()):
            raise RuntimeError(
                f"{type(self.builder).__name__} takes the first {metadata.num_decodes} rows for "
                f"decodes, and the rows to be run token by token have lengths "
                f"{rows.row_lengths.tolist()}: the runner has not sorted its batch. Report this"
            )
        return metadata

    def finished(self, built: Any, rows: TargetRows) -> Any:
        """Complete the metadata of that pass for the kernels."""
        return built

    def later_pass(self, batch: PassBatch, table: torch.Tensor, begins: torch.Tensor) -> Any:
        """Metadata of a pass with one token per request; ``begins`` is all False."""
        return self.builder.build(0, self._own(batch, table, begins))

    def for_table(self, built: Any, table: torch.Tensor) -> Any:
        """``built`` for a group with another block table.

        Decodes get all columns that they may use, prefills only the first.
        """
        decodes = built.num_decodes
        return replace(
            built,
            state_indices_tensor_d=table[:decodes, : built.state_indices_tensor_d.shape[1]],
            state_indices_tensor_p=table[decodes:, 0],
        )

    def _own(self, batch: PassBatch, table: torch.Tensor, begins: torch.Tensor) -> Any:
        """Common metadata for builders of recurrent layers.

        Their treatment of rows that vLLM calls prefilling depends on the length of a row. Here
        only rows that begin a state count as prefilling.
        """
        assert self._common is not None, "a draft runs its layers"
        common = self._common.of(batch)
        common.is_prefilling, common.block_table_tensor = begins, table
        common._num_computed_tokens_cache = None
        return common


class Mamba2(RecurrentBackend):
    """A convolution and a matrix per head."""

    width = "conv_kernel_size"


class ShortConvolution(RecurrentBackend):
    """A convolution alone (LFM2)."""

    width = "L_cache"


def without_room(layer: Any, width: int | None, speculative: int) -> str | None:
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
