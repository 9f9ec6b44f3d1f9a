# SPDX-License-Identifier: Apache-2.0
"""Layouts of queries, keys, values and outputs: from tensors to requests and back.

A layout names the axes: B batch, S sequence, N heads, D head size, H = N * D, T the tokens of all
requests one after the other. ``X_Y`` reads X and writes Y.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from emulated_npu.operators.registry import OperatorArgumentError

PACKED_LAYOUTS = ("TND", "NTD")


@dataclass(frozen=True)
class Layout:
    """Axes of query, key and value (`input`) and of the output (`output`)."""

    input: str
    output: str

    @classmethod
    def parse(cls, name: str) -> Layout:
        """Read an input_layout such as ``BNSD`` or ``BNSD_NBSD``."""
        before, _, after = name.partition("_")
        return cls(before, after or before)

    @property
    def packed(self) -> bool:
        """Whether requests lie one after the other, with cumulative lengths."""
        return self.input in PACKED_LAYOUTS

    @property
    def rank(self) -> int:
        """Dimensions of a query, a key or a value."""
        return len(self.input)

    def num_tokens(self, tensor: torch.Tensor) -> int:
        """T of a packed tensor."""
        return tensor.shape[self.input.index("T")]

    def batch_size(self, tensor: torch.Tensor) -> int:
        """B of a tensor that is not packed."""
        return tensor.shape[self.input.index("B")]

    def sequence_length(self, tensor: torch.Tensor) -> int:
        """S of a tensor that is not packed."""
        return tensor.shape[self.input.index("S")]

    def num_heads(self, tensor: torch.Tensor, declared: int) -> int:
        """N of a tensor, or `declared` where the layout has no such axis."""
        return tensor.shape[self.input.index("N")] if "N" in self.input else declared

    def head_size(self, tensor: torch.Tensor, num_heads: int) -> int:
        """D of a tensor with `num_heads` heads."""
        return tensor.shape[-1] // num_heads if self.input[-1] == "H" else tensor.shape[-1]


def split_batch(tensor: torch.Tensor, axes: str, num_heads: int) -> torch.Tensor:
    """A view (B, S, N, D) of a tensor that has a batch axis."""
    if axes == "BSND":
        return tensor
    if axes == "BNSD":
        return tensor.transpose(1, 2)
    if axes == "BSH":
        return tensor.unflatten(2, (num_heads, -1))
    if axes == "SBH":
        return tensor.transpose(0, 1).unflatten(2, (num_heads, -1))
    raise OperatorArgumentError(f"layout {axes} has no batch axis that is known here")


def split_packed(tensor: torch.Tensor, axes: str, ends: list[int]) -> list[torch.Tensor]:
    """Views (length, N, D), one per request; `ends` are the cumulative lengths."""
    tokens = tensor if axes == "TND" else tensor.transpose(0, 1)
    starts = [0, *ends[:-1]]
    return [tokens[start:end] for start, end in zip(starts, ends, strict=True)]


def join_batch(output: torch.Tensor, axes: str) -> torch.Tensor:
    """(B, S, N, D) -> a contiguous tensor with the axes asked for."""
    if axes == "BSND":
        return output.contiguous()
    if axes == "BNSD":
        return output.transpose(1, 2).contiguous()
    if axes == "NBSD":
        return output.permute(2, 0, 1, 3).contiguous()
    if axes == "BSH":
        return output.flatten(2).contiguous()
    if axes == "SBH":
        return output.flatten(2).transpose(0, 1).contiguous()
    raise OperatorArgumentError(f"layout {axes} is not one an output can have")


def join_packed(output: torch.Tensor, axes: str) -> torch.Tensor:
    """(T, N, D) -> a contiguous tensor with the axes asked for."""
    return output.contiguous() if axes == "TND" else output.transpose(0, 1).contiguous()
