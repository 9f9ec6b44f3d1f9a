# SPDX-License-Identifier: Apache-2.0
"""What the checks of operators ask of their arguments. Each raises OperatorArgumentError."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from emulated_npu.operators.registry import OperatorArgumentError
from emulated_npu.settings import settings

HALF_FLOATS = (torch.float16, torch.bfloat16)
FLOATS = (torch.float16, torch.bfloat16, torch.float32)
INTEGERS = (torch.int32, torch.int64)


def require(condition: bool, message: str) -> None:
    """Refuse with `message` unless `condition`. The message says what is allowed instead."""
    if not condition:
        raise OperatorArgumentError(message)


def require_absent(operator: str, **arguments: object) -> None:
    """Raise NotImplementedError for an argument that the operator has and the emulation has not."""
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) or value:
            raise NotImplementedError(
                f"emulated NPU: {operator} with {name} is not emulated; call it without"
            )


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def require_dtype(name: str, tensor: torch.Tensor, allowed: Collection[torch.dtype]) -> None:
    """Refuse a dtype that is not documented.

    float32 passes where a 16-bit float is documented if the settings ask for float32_compute: the
    one relaxation of strict mode, for comparisons with a float32 reference.
    """
    if tensor.dtype in allowed:
        return
    relaxed = tensor.dtype == torch.float32 and not set(allowed).isdisjoint(HALF_FLOATS)
    if relaxed and settings().float32_compute:
        return
    hint = ", or set EMULATED_NPU_FLOAT32_COMPUTE=1" if relaxed else ""
    raise OperatorArgumentError(
        f"{name} is {dtype_name(tensor.dtype)}; documented: "
        f"{', '.join(dtype_name(dtype) for dtype in allowed)}. Convert it{hint}"
    )


def require_same_dtype(**tensors: torch.Tensor | None) -> None:
    """Refuse tensors (given by name, None skipped) of differing dtypes."""
    given = {name: tensor.dtype for name, tensor in tensors.items() if tensor is not None}
    if len(set(given.values())) > 1:
        listed = ", ".join(f"{name} is {dtype_name(dtype)}" for name, dtype in given.items())
        raise OperatorArgumentError(f"{listed}; they must have one dtype")


def require_rank(name: str, tensor: torch.Tensor, allowed: int | Collection[int]) -> None:
    ranks = (allowed,) if isinstance(allowed, int) else tuple(allowed)
    if tensor.dim() not in ranks:
        raise OperatorArgumentError(
            f"{name} has {tensor.dim()} dimensions (shape {tuple(tensor.shape)}); "
            f"it must have {' or '.join(map(str, ranks))}"
        )


def require_shape(name: str, tensor: torch.Tensor, shape: Sequence[int | None]) -> None:
    """Refuse another shape than `shape`; None stands for any size."""
    matches = tensor.dim() == len(shape) and all(
        wanted is None or wanted == got for wanted, got in zip(shape, tensor.shape, strict=True)
    )
    if not matches:
        wanted_text = ", ".join("any" if size is None else str(size) for size in shape)
        raise OperatorArgumentError(
            f"{name} has shape {tuple(tensor.shape)}; it must be ({wanted_text})"
        )


def require_contiguous(name: str, tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        raise OperatorArgumentError(
            f"{name} (shape {tuple(tensor.shape)}, strides {tensor.stride()}) is not contiguous; "
            f"the operator takes contiguous memory. Call .contiguous() or change its layout"
        )


def require_multiple(name: str, value: int, divisor: int) -> None:
    if value % divisor:
        raise OperatorArgumentError(f"{name} is {value}; it must be a multiple of {divisor}")


def require_range(name: str, value: float, low: float, high: float) -> None:
    """Refuse a value outside low to high, both included."""
    if not low <= value <= high:
        raise OperatorArgumentError(f"{name} is {value}; it must be from {low} to {high}")
