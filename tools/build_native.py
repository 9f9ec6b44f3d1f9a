# SPDX-License-Identifier: Apache-2.0
"""Build the native parts of both distributions in place; the set-up runs it beside downloads."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

if __name__ == "__main__":
    build = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    # The device first: it takes longest, and uses all cores.
    sys.exit(max(subprocess.call(build, cwd=ROOT / name) for name in ("emulated_npu", ".")))
