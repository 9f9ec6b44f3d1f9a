# SPDX-License-Identifier: Apache-2.0
"""One process that runs cells: ``python -m benchmarks.matrix.worker SIDE CELL...``

It prints one line of JSON for each cell, after ``MATRIX``. It is started by ``benchmarks.matrix``,
on the emulated NPU, with stock vllm-ascend or this plugin in the platform slot.
"""

from __future__ import annotations

import json
import sys

from benchmarks.matrix import cells, running

MARK = "MATRIX "


def main(side: str, names: list[str]) -> None:
    """Run the cells called ``names``; print a verdict each."""
    for cell in cells.find_cells(names):
        print(f"{MARK}{json.dumps({'started': cell.name})}", flush=True)
        verdict = running.run(cell, side)
        print(f"{MARK}{json.dumps({'cell': cell.name, **verdict.as_json()})}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
