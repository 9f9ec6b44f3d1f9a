# SPDX-License-Identifier: Apache-2.0
"""The AscendC kernels of csrc/ascend, built for the CPU once per test session."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from mkv_ascend.testing.ascendc_host import ROOT, HostKernels, build

FOLDER = ROOT / "csrc" / "ascend"
CORES = 40
# Set by the mutation script, to test a changed copy of the folder.
SOURCES = "MKV_KERNEL_TEST_SOURCES"


@cache
def library(name: str) -> HostKernels:
    """The kernels of one source file."""
    folder = Path(os.environ.get(SOURCES) or FOLDER)
    output = Path(mkdtemp(prefix="mkv_kernels_"))
    return HostKernels(build([folder / f"{name}.cpp"], output, name=f"lib{name}.so"))
