# SPDX-License-Identifier: Apache-2.0
"""Launches of the kernels with the arguments of their ops, on CPU tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

from mkv_ascend.testing.ascendc_host import Output, Report
from tests.unit.ascend_kernels.kernels import library


def wide(tensor: torch.Tensor) -> int:
    return int(tensor.dtype == torch.int64)


class Component(ctypes.Structure):
    """``MkvScatterComponent``."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("block_stride", ctypes.c_int64),
        ("token_stride", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("num_blocks", ctypes.c_int64),
    )

    @classmethod
    def of(cls, row: torch.Tensor, cache: torch.Tensor) -> Component:
        item = row.element_size()
        return cls(
            row.data_ptr(), cache.data_ptr(), row.stride(0) * item, cache.stride(0) * item,
            cache.stride(1) * item, cache.shape[2:].numel() * item, cache.shape[1], cache.shape[0],
        )  # fmt: skip


def paged_scatter(
    rows: Sequence[torch.Tensor],
    slots: torch.Tensor,
    caches: Sequence[torch.Tensor],
    *,
    cores: int,
    seed: int = 0,
) -> Report:
    components = (Component * 4)(*map(Component.of, rows, caches))
    reachable: dict[str, Any] = {f"rows[{index}]": row for index, row in enumerate(rows)}
    reachable |= {f"caches[{index}]": Output(cache) for index, cache in enumerate(caches)}
    return library("paged_scatter").launch(
        "mkv_ascend_paged_scatter", cores, None, slots, ctypes.c_int64(slots.shape[0]), len(rows),
        components, seed=seed, reachable=reachable,
    )  # fmt: skip


def zero_blocks(
    block_ids: torch.Tensor,
    caches: Sequence[torch.Tensor],
    page_table: torch.Tensor,
    *,
    cores: int,
    seed: int = 0,
) -> Report:
    reachable = {f"caches[{index}]": Output(cache) for index, cache in enumerate(caches)}
    return library("zero_blocks").launch(
        "mkv_ascend_zero_blocks", cores, None, block_ids, wide(block_ids),
        ctypes.c_int64(block_ids.shape[0]), page_table, ctypes.c_int64(len(caches)), seed=seed,
        reachable=reachable,
    )  # fmt: skip
