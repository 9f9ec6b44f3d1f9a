# SPDX-License-Identifier: Apache-2.0
"""Switches of ``torch.npu`` that programs set; the emulated device computes the same either way."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Config:
    """allow_internal_format: whether tensors may be kept in private formats. They never are."""

    allow_internal_format: bool = False


@dataclass
class ReducedPrecision:
    """allow_hf32: whether float32 products may lose bits. Here they never do."""

    allow_hf32: bool = False


config = Config()
matmul = ReducedPrecision()
conv = ReducedPrecision()


def super_kernel_scope_begin(scope: str) -> None:
    """What follows may be fused into one kernel; see ``NPUGraph.super_kernel_optimize``."""


def super_kernel_scope_end(scope: str) -> None:
    """The end of what super_kernel_scope_begin began."""
