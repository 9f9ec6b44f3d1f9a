# SPDX-License-Identifier: Apache-2.0
"""What triton-ascend's language has and Triton 3.4.0's lacks, for interpreted kernels.

- ``extract_slice``, ``insert_slice``, ``get_element`` of ``triton.language.extra.cann.extension``
  (source: triton-ascend's documentation of its language extensions)
- ``arange`` and block shapes of any size, not only powers of two
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

EXTENSION_MODULE = "triton.language.extra.cann.extension"


def extract_slice(
    ful: Any,
    offsets: Sequence[Any],
    sizes: Sequence[Any],
    strides: Sequence[Any],
    _semantic: Any = None,
    _generator: Any = None,
) -> Any:
    """The block ``ful[offset : offset + size * stride : stride]``, per dimension."""
    return _block(ful.handle.data[_slices(offsets, sizes, strides)].copy(), ful)


def insert_slice(
    ful: Any,
    sub: Any,
    offsets: Sequence[Any],
    sizes: Sequence[Any],
    strides: Sequence[Any],
    _semantic: Any = None,
    _generator: Any = None,
) -> Any:
    """A copy of ``ful`` in which the slice that extract_slice would return is ``sub``."""
    data = ful.handle.data.copy()
    data[_slices(offsets, sizes, strides)] = sub.handle.data
    return _block(data, ful)


def get_element(
    src: Any, indice: Sequence[Any], _semantic: Any = None, _generator: Any = None
) -> Any:
    """The scalar ``src[indice]``."""
    return _block(np.asarray(src.handle.data[tuple(_integers(indice))]), src)


def _slices(
    offsets: Sequence[Any], sizes: Sequence[Any], strides: Sequence[Any]
) -> tuple[slice, ...]:
    dimensions = zip(_integers(offsets), _integers(sizes), _integers(strides), strict=True)
    return tuple(slice(start, start + size * stride, stride) for start, size, stride in dimensions)


def _integers(values: Sequence[Any]) -> list[int]:
    return [_integer(value) for value in values]


def _integer(value: Any) -> int:
    """An integer from a Python number, a constexpr or a scalar of the interpreter."""
    if hasattr(value, "handle"):
        return int(np.asarray(value.handle.data).item())
    return int(getattr(value, "value", value))


def _block(data: np.ndarray[Any, Any], like: Any) -> Any:
    """`data` as a tensor of the interpreter, with the element type of ``like``."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    scalar = like.type.scalar
    if data.ndim == 0:
        # The interpreter keeps a scalar as an array of one element.
        return tl.tensor(TensorHandle(data.reshape(1), scalar), scalar)
    return tl.tensor(TensorHandle(data, scalar), tl.block_type(scalar, list(data.shape)))


def install_extension_module() -> None:
    """Make triton-ascend's extension module importable."""
    package = ModuleType(EXTENSION_MODULE.rpartition(".")[0])
    package.__path__ = []
    extension = ModuleType(EXTENSION_MODULE)
    for function in (extract_slice, insert_slice, get_element):
        setattr(extension, function.__name__, function)
    package.extension = extension  # type: ignore[attr-defined]
    sys.modules[package.__name__] = package
    sys.modules[extension.__name__] = extension


def lift_power_of_two_rule(utils: ModuleType) -> None:
    """Let ``triton._utils`` accept block shapes of any size."""
    utils.is_power_of_two = lambda _size: True  # type: ignore[attr-defined]


def lift_arange_rule(semantic: ModuleType) -> None:
    """Let ``tl.arange`` of ``triton.language.semantic`` take ranges of any length."""
    original = semantic.TritonSemantic.arange

    def arange(self: Any, start: int, end: int, *, ret_ty: Any = None) -> Any:
        length = end - start
        if length <= 0 or length & (length - 1) == 0:
            return original(self, start, end, ret_ty=ret_ty)
        import triton.language as tl
        from triton.runtime.interpreter import TensorHandle

        data = np.arange(start, end, dtype=np.int32)
        return tl.tensor(TensorHandle(data, tl.int32), tl.block_type(tl.int32, [length]))

    semantic.TritonSemantic.arange = arange
