# SPDX-License-Identifier: Apache-2.0
"""The tests of the kernels once more, with kernels built with AddressSanitizer and
UndefinedBehaviorSanitizer: for what kernels do beside the calls that the checker sees."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ascendc_host import compiler
from tests.unit.ascend_kernels.kernels import SANITIZED

pytestmark = pytest.mark.packaging

OPTIONS = {
    # Python itself leaks at exit, and loads the sanitizers' library before the one that needs it.
    "ASAN_OPTIONS": "detect_leaks=0:verify_asan_link_order=0",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "MKV_KERNEL_TEST_SANITIZED": "1",
}


def runtime() -> str:
    """Where the compiler has AddressSanitizer's library; Python is not linked with it."""
    command = [compiler(), "-print-file-name=libasan.so"]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(found).is_absolute(), f"{compiler()} has no libasan.so; install gcc's sanitizers"
    return found


@pytest.mark.slow
@pytest.mark.skipif(SANITIZED, reason="this is the inner run")
def test_kernels_under_sanitizers() -> None:
    environment = os.environ | OPTIONS | {"LD_PRELOAD": runtime()}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(Path(__file__).parent)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
