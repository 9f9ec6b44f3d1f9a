# SPDX-License-Identifier: Apache-2.0
"""What holds the memory of an engine, and what of it grows with the requests that it has served.

A process may grow for three reasons, which its size does not tell apart: somebody keeps objects for
ever; a cache that is bounded fills; malloc cannot use again what it has in pieces. So a worker is
asked for the lines of Python whose objects live, and for what malloc has given out and has left.
With one rank it is in the process of the engine core, so that its scheduler is seen, too.
"""

from __future__ import annotations

import ctypes
import gc
import os
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

WORKER = f"{__name__}.Holder"
"""``worker_extension_cls`` of an engine that tells what it holds."""
LEAST = 100
"""Bytes for each 1,000 requests; what grows by less is not told."""

Held = dict[str, Any]


class Holder:
    """What a worker tells of its process."""

    def memory_held(self) -> Held:
        """Bytes by line of Python, and of malloc. The first call begins to note lines.

        Returns:
            ``lines``: "file:line" -> bytes of its objects that live; ``resident``: bytes;
            ``used``, ``unused``: bytes that malloc has given out, and has left; ``objects``: those
            that the collector knows.
        """
        gc.collect()
        known = len(gc.get_objects())
        if not tracemalloc.is_tracing():
            tracemalloc.start()
        found = tracemalloc.take_snapshot()
        own = [tracemalloc.Filter(False, name) for name in (tracemalloc.__file__, __file__)]
        lines = {
            f"{one.traceback[0].filename}:{one.traceback[0].lineno}": one.size
            for one in found.filter_traces(own).statistics("lineno")
        }
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        used, unused = _malloc()
        return {
            "lines": lines,
            "resident": pages * os.sysconf("SC_PAGE_SIZE"),
            "used": used,
            "unused": unused,
            "objects": known,
        }


@dataclass
class Growth:
    """How what the first worker holds has grown, round by round."""

    rounds: list[tuple[int, Held]] = field(default_factory=list)

    def note(self, requests: int, ask: Callable[[str], Any]) -> None:
        """Ask the workers, by the name of a method, once ``requests`` have been answered."""
        self.rounds.append((requests, ask("memory_held")[0]))

    def told(self) -> list[str]:
        """What grew since the second round: totals, and each line, the fastest first.

        The first round begins to note lines, so that the second is the first with all of them.
        """
        if len(self.rounds) < 3:
            return ["too few rounds to tell what grows: three are the fewest"]
        (begun, first), *_, (ended, last) = self.rounds[1:]
        thousands = (ended - begun) / 1000
        totals = [
            f"{name} {(last[name] - first[name]) / thousands:+,.0f}"
            for name in ("resident", "used", "unused", "objects")
        ]
        said = [f"for each 1,000 of the last {ended - begun} requests: {', '.join(totals)}"]
        grown = {
            line: (size - first["lines"].get(line, 0)) / thousands
            for line, size in last["lines"].items()
        }
        for line, more in sorted(grown.items(), key=lambda item: -item[1]):
            if more >= LEAST:
                said.append(f"{more:+,.0f} bytes, in {self._rounds_of_growth(line)}: {line}")
        return said

    def _rounds_of_growth(self, line: str) -> str:
        sizes = [held["lines"].get(line, 0) for _, held in self.rounds[1:]]
        grew = sum(after > before for before, after in pairwise(sizes))
        return f"{grew} of {len(sizes) - 1} rounds"


class _Mallinfo2(ctypes.Structure):
    """glibc's, of mallinfo2(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def _malloc() -> tuple[int, int]:
    """Bytes that malloc has given out, and those that it has left, of all threads."""
    told = ctypes.CDLL(None).mallinfo2
    told.restype = _Mallinfo2
    found = told()
    return found.uordblks + found.hblkhd, found.fordblks
