# SPDX-License-Identifier: Apache-2.0
"""What memory holds that nothing was written to, as ``EMULATED_NPU_UNWRITTEN`` asks.

A device leaves there what was there before. So a program that reads it is right by chance, and
runs with ``nan`` and with ``zero`` tell: one whose results differ reads it. Operators leave rows
undefined, too; these are asked for apart, because vllm-ascend multiplies some by 0.
"""

from __future__ import annotations

import functools

import torch

from emulated_npu import variables

LEFT_AS_IT_IS, ALL_ONES, ALL_ZERO = -1, 0xFF, 0
"""A byte, or none, to fill memory with; all ones read as NaN, and as -1."""


def fills() -> tuple[int, int]:
    """The bytes for memory that is handed out, and for captured memory before its first replay."""
    return {
        variables.CHANCE: (LEFT_AS_IT_IS, ALL_ONES),
        variables.NAN: (ALL_ONES, ALL_ONES),
        variables.ZERO: (ALL_ZERO, ALL_ZERO),
        variables.UNDEFINED: (ALL_ONES, ALL_ONES),
    }[_asked()]


@functools.cache
def _asked() -> str:
    return variables.UNWRITTEN.get()


def undefined(result: torch.Tensor) -> torch.Tensor:
    """Fill a new tensor of an operator, for the rows that a device leaves undefined: with zeros,
    unless they are asked to be NaN (-1 of integers)."""
    if _asked() != variables.UNDEFINED:
        return result.zero_()
    return result.fill_(float("nan") if result.is_floating_point() else -1)
