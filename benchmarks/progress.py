# SPDX-License-Identifier: Apache-2.0
"""Progress of a benchmark, on standard error: standard output is for the result."""

from __future__ import annotations

import sys
import time

_STARTED = time.monotonic()


def say(what: str) -> None:
    """One line, with the seconds since the start."""
    print(f"[{time.monotonic() - _STARTED:5.0f} s] {what}", file=sys.stderr, flush=True)
