# SPDX-License-Identifier: Apache-2.0
"""Custom ops: what their AscendC kernels move and issue, and how fast the kernels for CPUs are.

    python -m benchmarks.ops [--json]

The kernels for the NPU run under ``csrc/ascendc_host``, which counts; nothing is said about time on
an NPU. Per op and size:

- ``bytes_ratio``: bytes between global memory and UB over the least possible. Both are counted in
  sectors of 32 bytes, what really moves: the least is every sector that holds a value which the op
  must read or write, once, and what a core touches in part it moves whole. The scalar unit's data
  cache moves lines of 64 bytes.
- ``vector_per_request``, ``scalar_per_request``: instructions. A request of ``zero_blocks`` is
  a block of a cache.
- ``balance``: bytes moved by the busiest of 40 cores over the mean of all 40, those that a small
  batch leaves idle included.
- ``cpu_over_loop``: time of the kernel for CPU tensors over a plain loop's.
- ``cpu_over_reference``: time of the op on CPU tensors over its torch reference's.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.op_batches import CASES, Case
from benchmarks.op_loops import Loops
from mkv_ascend import ops
from mkv_ascend.ops import implementations
from mkv_ascend.ops.registration import OPS, checked_reference
from tests.support.ascendc_host import Report

REPEATS = 15
CORES = 40
"""That a launch may use: kCores in csrc/ascend/host_binding.cpp."""


def figures(case: Case, loops: Loops) -> dict[str, Any]:
    """One row of the result."""
    arguments = case.arguments()
    implementations.kernel_of(implementations.ASCENDC_HOST, case.op)(*arguments)
    report = Report.from_json(torch.ops.mkv_ascend_host.report())
    report.require_clean()
    work = [core.cost_bytes for core in report.cores]
    return {
        "op": case.op,
        "size": case.size,
        "bytes_ratio": round(report.total("cost_bytes") / case.least_bytes, 3),
        "vector_per_request": round(report.total("V") / case.requests, 2),
        "scalar_per_request": round(report.total("S") / case.requests, 2),
        "balance": round(max(work) * CORES / sum(work), 3),
        "cpu_over_loop": round(loops.ratio(case.op, case.loop), 3),
        "cpu_over_reference": round(_over_reference(case.op, arguments), 4),
    }


def _over_reference(op: str, arguments: tuple[Any, ...]) -> float:
    native = implementations.kernel_of(implementations.NATIVE, op)
    reference = checked_reference(OPS[op])
    ratios = [_seconds(native, arguments) / _seconds(reference, arguments) for _ in range(REPEATS)]
    return statistics.median(ratios)


def _seconds(kernel: Callable[..., Any], arguments: tuple[Any, ...]) -> float:
    start = time.perf_counter()
    kernel(*arguments)
    return time.perf_counter() - start


def run(cases: tuple[Case, ...] = CASES) -> dict[str, Any]:
    """``{"rows": [...]}``, one per op and size."""
    ops.load_all()
    loops = Loops()
    return {"rows": [figures(case, loops) for case in cases]}


def as_table(result: dict[str, Any]) -> str:
    """The rows for a person."""
    names = list(result["rows"][0])
    rows = [names, *([str(row[name]) for name in names] for row in result["rows"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(names))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )


def main() -> None:
    """Print the rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print the rows as JSON")
    as_json = parser.parse_args().json
    result = run()
    print(json.dumps(result, indent=2) if as_json else as_table(result))


if __name__ == "__main__":
    main()
