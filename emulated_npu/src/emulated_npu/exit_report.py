# SPDX-License-Identifier: Apache-2.0
"""Prints the counters when a process ends, in every process of an engine.

Not by ``atexit`` alone: a forked child of ``multiprocessing`` (an engine core, a worker) ends
without it. ``multiprocessing``'s own finalizers run in both kinds of process.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from multiprocessing import util

from emulated_npu import counters

# Below every other finalizer's priority: what those still do is counted too.
_LAST = -1000


def install() -> None:
    """Print the report of this process, and of the processes forked from it, when they end."""
    util.Finalize(None, _print_report, exitpriority=_LAST)
    util.register_after_fork(counters, _start_in_forked_child)


def _start_in_forked_child(_: object) -> None:
    # multiprocessing forgets a parent's finalizers in the child.
    util.Finalize(None, _print_report, exitpriority=_LAST)


def _print_report() -> None:
    """Write to stderr in one piece, so that reports of several processes do not mix."""
    counts = counters.snapshot()
    if not (counts.launches or counts.host_reads or counts.bytes_to_device):
        return  # a process that never used its devices, such as an API server
    name = multiprocessing.current_process().name
    sys.stderr.write(f"{name} (process {os.getpid()}): {counters.report(counts)}")
    sys.stderr.flush()
