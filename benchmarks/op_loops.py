# SPDX-License-Identifier: Apache-2.0
"""The plain loops of ``op_loops.cpp``, compiled when they are asked for."""

from __future__ import annotations

import ctypes
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.ascendc_host import ROOT, run_compiler

SOURCE = ROOT / "benchmarks" / "op_loops.cpp"
KERNELS = ROOT / "csrc" / "cpu"
REPEATS = 51


class Loops:
    """Each op's kernel for CPU tensors beside a plain loop."""

    def __init__(self) -> None:
        with TemporaryDirectory(prefix="mkv_op_loops_") as folder:
            library = Path(folder) / "loops.so"
            # Optimised as the kernels are (csrc/cpu/CMakeLists.txt).
            run_compiler(
                ["-std=c++20", "-O2", "-fno-tree-loop-distribute-patterns", "-shared", "-fPIC",
                 "-I", KERNELS, SOURCE, *sorted(KERNELS.glob("*.cpp")), "-o", library]
            )  # fmt: skip
            self._library = ctypes.CDLL(str(library))

    def ratio(self, op: str, sizes: tuple[int, ...]) -> float:
        """Time of the kernel over that of the loop, the fastest of interleaved repeats.

        Raises:
            AssertionError: kernel and loop disagree.
        """
        function = getattr(self._library, f"loop_{op}")
        function.restype = ctypes.c_double
        ratio = float(function(*map(ctypes.c_int64, sizes), REPEATS))
        if ratio < 0:
            raise AssertionError(f"{op}: the kernel and the loop of {SOURCE.name} disagree")
        return ratio
