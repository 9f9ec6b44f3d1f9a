# SPDX-License-Identifier: Apache-2.0
"""The AscendC kernels of csrc/ascend, built for the CPU once per test session."""

import os
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
from hypothesis import HealthCheck, settings

from tests.support.ascendc_host import ROOT, SANITIZERS, HostKernels, build

FOLDER = ROOT / "csrc" / "ascend"
CORES = 40
SANITIZED = "MKV_KERNEL_TEST_SANITIZED" in os.environ
"""Set for the run under AddressSanitizer, by test_sanitized.py."""

examples = settings(
    max_examples=8 if SANITIZED else 40, suppress_health_check=[HealthCheck.too_slow]
)


def aligned(values: np.ndarray) -> np.ndarray:
    """A copy that begins on a cache line, as a tensor of a device does: the checker counts the
    sectors that a kernel touches."""
    memory = np.empty(values.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 64
    copy = memory[start : start + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


@cache
def library() -> HostKernels:
    """All kernels, as one source: what they share of the headers is then compiled once, not in each
    of them, which takes a quarter of the time. The build itself compiles them one by one."""
    output = Path(mkdtemp(prefix="mkv_kernels_"))
    # The folder has the host's sources as well.
    sources = sorted(
        path for path in FOLDER.glob("*.cpp") if "__global__" in path.read_text("utf-8")
    )
    together = output / "kernels.cpp"
    together.write_text("".join(f'#include "{path}"\n' for path in sources))
    flags = SANITIZERS if SANITIZED else ()
    # Not optimised: compiling takes longer than running does.
    return HostKernels(build([together], output, flags=flags, optimise="-O0"))
