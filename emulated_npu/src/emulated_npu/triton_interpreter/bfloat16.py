# SPDX-License-Identifier: Apache-2.0
"""Arithmetic in bfloat16 for interpreted kernels.

Triton 3.4.0's interpreter keeps bfloat16 as 16-bit integers and adds and multiplies those, and it
cuts off what a conversion to bfloat16 should round. Here each operation widens its operands to
float32 and rounds its result to the nearest bfloat16, ties to even, as compiled kernels do.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

RESULT_LIKE = {
    "unary_op": 0,
    "create_rsqrt": 0,
    "create_erf": 0,
    "binary_op": 0,
    "ternary_op": 2,
    "create_fma": 2,
    "create_dot": 2,
}
"""Operation of the interpreter's builder -> the operand whose type its result has."""


def widened(bits: Array) -> Array:
    """The float32 values of bfloat16 ``bits`` (uint16, any shape)."""
    return (np.asarray(bits).astype(np.uint32) << 16).view(np.float32)


def narrowed(values: Array) -> Array:
    """The bits of the bfloat16 values that are nearest to ``values``, ties to even."""
    wide = np.ascontiguousarray(values, dtype=np.float32).reshape(np.shape(values))
    bits = wide.view(np.uint32)
    # Half of the last place that is kept, less one where the kept part is even already.
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(wide), quiet, rounded).astype(np.uint16)


def install(interpreter: ModuleType) -> None:
    """Let the builder of ``triton.runtime.interpreter`` compute in bfloat16."""
    builder = interpreter.InterpreterBuilder
    for name, place in RESULT_LIKE.items():
        setattr(builder, name, _widening(getattr(builder, name), place, interpreter))
    for name in ("cast_impl", "create_fp_to_fp"):
        setattr(builder, name, _converting(getattr(builder, name), interpreter))
    interpreter.ReduceOps.sum = _summing(interpreter.ReduceOps.sum)
    builder.get_bf16 = _constant(interpreter)


def _widening(operate: Callable[..., Any], place: int, interpreter: ModuleType) -> Any:
    import triton.language as tl

    handle = interpreter.TensorHandle

    def is_narrow(value: Any) -> bool:
        return isinstance(value, handle) and value.dtype.scalar == tl.bfloat16

    @functools.wraps(operate)
    def wrapper(self: Any, *operands: Any) -> Any:
        if not any(map(is_narrow, operands)):
            return operate(self, *operands)
        wide = [
            handle(widened(one.data), tl.float32) if is_narrow(one) else one for one in operands
        ]
        result = operate(self, *wide)
        if not is_narrow(operands[place]) or result.dtype == tl.int1:  # a comparison's
            return result
        return handle(narrowed(result.data), tl.bfloat16)

    return wrapper


def _constant(interpreter: ModuleType) -> Any:
    """A number of a kernel's text in bfloat16: the builder has one for every other type."""
    import triton.language as tl

    def get_bf16(self: Any, value: float) -> Any:
        return interpreter.TensorHandle(narrowed(np.array([value])), tl.bfloat16)

    return get_bf16


def _summing(total: Callable[..., Any]) -> Any:
    """Sums are made by numpy, not by the builder. Rounded once: the order of a device's additions
    is its own affair, and so is the width that they are made in."""
    import triton.language as tl

    @functools.wraps(total)
    def wrapper(self: Any, source: Any) -> Any:
        if source.handle.dtype.scalar != tl.bfloat16:
            return total(self, source)
        values = widened(source.handle.data)
        bits = narrowed(np.sum(values, axis=self.axis, keepdims=self.keep_dims))
        return self.to_tensor(bits, tl.bfloat16)

    return wrapper


def _converting(convert: Callable[..., Any], interpreter: ModuleType) -> Any:
    import triton.language as tl

    handle = interpreter.TensorHandle

    @functools.wraps(convert)
    def wrapper(self: Any, source: Any, target: Any, *others: Any) -> Any:
        before, after = source.dtype.scalar, target.scalar
        if before == after or tl.bfloat16 not in (before, after):
            return convert(self, source, target, *others)
        values = widened(source.data) if before == tl.bfloat16 else source.data
        if after == tl.bfloat16:
            return handle(narrowed(values), after)
        return handle(values.astype(interpreter._get_np_dtype(target)), after)

    return wrapper
