# SPDX-License-Identifier: Apache-2.0
"""The processes of a run of the matrix: when it is stopped, none of them is left behind."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence

import psutil


class Workers:
    """Processes that run now, started by any thread and ended together."""

    def __init__(self) -> None:
        self.ended = False
        self._running: set[int] = set()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def started(
        self, command: Sequence[str], environment: Mapping[str, str] | None = None
    ) -> Iterator[subprocess.Popen[str]]:
        """A process whose output and errors are one stream of text; waits for its end on leaving.

        Where an error or a signal ends the reader, it is ended at once.

        Raises:
            RuntimeError: ``end`` was called.
        """
        with self._lock:
            if self.ended:
                raise RuntimeError(f"not started, because all are to end: {command[0]}")
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self._running.add(process.pid)
        try:
            with process:
                try:
                    yield process
                except BaseException:
                    end_with_children(process.pid)
                    raise
        finally:
            with self._lock:
                self._running.discard(process.pid)

    def end(self) -> None:
        """End all of them, with what they started. None is started afterwards."""
        with self._lock:
            self.ended = True
            for process in self._running:
                end_with_children(process)


def end_with_children(process: int) -> None:
    """Kill a process and what it started; engines have sessions of their own, so groups miss them.

    Args:
        process: its id; it may have ended already.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(process)
        for one in [first, *first.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
