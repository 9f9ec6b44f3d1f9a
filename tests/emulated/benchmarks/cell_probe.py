# SPDX-License-Identifier: Apache-2.0
"""Runs a cell of the matrix and prints its verdict as JSON."""

import json
import sys
from dataclasses import asdict

from benchmarks.matrix import cells, running


def main():
    (cell,) = cells.find_cells([json.loads(sys.argv[1])])
    print(json.dumps(asdict(running.run(cell, running.OURS))))


if __name__ == "__main__":
    main()
