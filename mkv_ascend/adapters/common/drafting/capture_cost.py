# SPDX-License-Identifier: Apache-2.0
"""The cost of graph captures when the engine starts."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch_npu


@dataclass(frozen=True)
class CaptureCost:
    """Number of graphs, seconds, and bytes of device memory that the graphs keep."""

    graphs: int = 0
    seconds: float = 0.0
    kept_bytes: int = 0

    def __add__(self, other: CaptureCost) -> CaptureCost:
        return CaptureCost(
            self.graphs + other.graphs,
            self.seconds + other.seconds,
            self.kept_bytes + other.kept_bytes,
        )

    def __str__(self) -> str:
        return f"{self.graphs} in {self.seconds:.1f} s, {self.kept_bytes / (1 << 20):.2f} MiB"


class CaptureMeter:
    """Adds up the cost of captures; ``total``: the cost so far."""

    def __init__(self) -> None:
        self.total = CaptureCost()

    @contextmanager
    def one_graph(self) -> Iterator[None]:
        """Measure the capture of a graph, its preparation included."""
        start, free = time.perf_counter(), _free_bytes()
        yield
        self.total += CaptureCost(1, time.perf_counter() - start, free - _free_bytes())


def _free_bytes() -> int:
    """Free memory of the device, after the allocator has released its cache."""
    torch_npu.npu.synchronize()
    torch_npu.npu.empty_cache()
    free: int = torch_npu.npu.mem_get_info()[0]
    return free
