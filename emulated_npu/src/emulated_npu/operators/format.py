# SPDX-License-Identifier: Apache-2.0
"""Memory formats. The emulated NPU keeps every tensor in ND (row major): a cast changes nothing."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from emulated_npu.modules.formats import Format
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import require


def _require_format(acl_format: int) -> None:
    known = ", ".join(f"{entry.value} ({entry.name})" for entry in Format)
    require(
        int(acl_format) in set(Format), f"acl_format is {acl_format}; it must be one of {known}"
    )


_FORMAT_LIMITS = "The data stays in ND and the tensor given is returned."


@operator(
    "npu_format_cast", source="op-plugin docs: torch_npu.npu_format_cast", limits=_FORMAT_LIMITS
)
def npu_format_cast(
    input: torch.Tensor,
    acl_format: int,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> torch.Tensor:
    """The tensor itself."""
    return input


@npu_format_cast.check
def _check_format_cast(acl_format: int) -> None:
    _require_format(acl_format)


@operator(
    "npu_format_cast_",
    source="op-plugin docs: torch_npu.npu_format_cast_",
    limits=_FORMAT_LIMITS,
    writes=("input",),
)
def npu_format_cast_(
    input: torch.Tensor,
    acl_format: int,
    *,
    customize_dtype: int | None = None,
    input_dtype: int | None = None,
) -> torch.Tensor:
    """The tensor itself."""
    return input


@npu_format_cast_.check
def _check_format_cast_(acl_format: int) -> None:
    _require_format(acl_format)


@operator(
    "get_storage_size",
    source="torch_npu: get_storage_size, elements of a tensor's memory in its format",
    limits="Always that of ND.",
    launches=False,
)
def get_storage_size(input: torch.Tensor) -> int:
    """Elements that the tensor's storage holds, whatever part of it the tensor shows."""
    return input.untyped_storage().nbytes() // input.element_size()


@operator(
    "get_npu_format",
    source="op-plugin docs: torch_npu.get_npu_format",
    limits="Always ND.",
    launches=False,
)
def get_npu_format(input: torch.Tensor) -> int:
    """ND, the format of every emulated tensor."""
    return int(Format.ND)


@operator(
    "empty_with_format",
    source="op-plugin docs: torch_npu.empty_with_format",
    limits="The data is in ND whatever the format asked for.",
    launches=False,
)
def empty_with_format(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | str | None = None,
    pin_memory: bool | None = None,
    acl_format: int = 2,
    base_addr_aligned_kb: int | None = None,
) -> torch.Tensor:
    """An uninitialised tensor; the registry moves it to the current emulated device."""
    return torch.empty(tuple(size), dtype=dtype, layout=layout or torch.strided)


@operator(
    "npu_prefetch",
    source="op-plugin docs: torch_npu.npu_prefetch",
    limits="max_size over 0; offset 0 or more, within the tensor. Moves no data here.",
)
def npu_prefetch(
    input: torch.Tensor, dependency: torch.Tensor | None, max_size: int, offset: int = 0
) -> None:
    """Load a weight to the L2 cache ahead of its use: there is no such cache here."""


@npu_prefetch.check
def _check_prefetch(input: torch.Tensor, max_size: int, offset: int) -> None:
    require(max_size > 0, f"max_size is {max_size}; it must be over 0")
    size = input.numel() * input.element_size()
    require(0 <= offset <= size, f"offset is {offset}; it must be from 0 to {size} bytes")
