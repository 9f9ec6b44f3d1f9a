# SPDX-License-Identifier: Apache-2.0
"""The AscendC kernels of the ops, launched on CPU tensors through ascendc_host."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mkv_ascend.testing.ascendc_host import ROOT, HostKernels, Output, Report, build

SOURCES = ROOT / "csrc" / "ascend"
KERNELS = ("paged_scatter", "zero_blocks")


def build_kernels(folder: Path, **options: Any) -> HostKernels:
    sources = [SOURCES / f"{name}.cpp" for name in KERNELS]
    return HostKernels(build(sources, folder, **options))


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
    library: HostKernels,
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
    return library.launch(
        "mkv_paged_scatter_launch", cores, None, slots, ctypes.c_int64(slots.shape[0]), len(rows),
        components, seed=seed, reachable=reachable,
    )  # fmt: skip


def zero_blocks(
    library: HostKernels,
    block_ids: torch.Tensor,
    caches: Sequence[torch.Tensor],
    page_table: torch.Tensor,
    *,
    cores: int,
    seed: int = 0,
) -> Report:
    reachable = {f"caches[{index}]": Output(cache) for index, cache in enumerate(caches)}
    return library.launch(
        "mkv_zero_blocks_launch", cores, None, block_ids, wide(block_ids),
        ctypes.c_int64(block_ids.shape[0]), page_table, ctypes.c_int64(len(caches)), seed=seed,
        reachable=reachable,
    )  # fmt: skip
