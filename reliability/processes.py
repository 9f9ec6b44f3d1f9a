# SPDX-License-Identifier: Apache-2.0
"""The processes of a server: their memory, and what is left of them after its end."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from pathlib import Path

import psutil

SHARED_MEMORY = "/dev/shm/"


@dataclass
class Watched:
    """What was seen of a server's processes, which share the session of the first.

    Attributes:
        session: id of the session.
        folder: for their temporary files.
        names: process id -> what it is called.
        shared: files of shared memory that they had.
    """

    session: int
    folder: Path
    names: dict[int, str] = field(default_factory=dict)
    shared: set[str] = field(default_factory=set)

    def alive(self) -> list[psutil.Process]:
        """Those that run now, or are stopped."""
        found = []
        for process in psutil.process_iter():
            try:
                if os.getsid(process.pid) != self.session:
                    continue
                if process.status() == psutil.STATUS_ZOMBIE:
                    continue
                # A process that was forked has its parent's title at first.
                self.names[process.pid] = _name(process)
                found.append(process)
            except (ProcessLookupError, psutil.NoSuchProcess):
                continue
        return found

    def look(self) -> dict[str, int]:
        """Note their shared memory; name of each process -> bytes that it holds."""
        memory: dict[str, int] = {}
        for process in self.alive():
            self.shared |= _shared_memory(process.pid)
            try:
                memory[f"{self.names[process.pid]} {process.pid}"] = process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return memory

    def first(self, role: str) -> psutil.Process | None:
        """The process of a role: ``server``, ``engine`` or ``worker``."""
        for process in self.alive():
            if self.names[process.pid] == role:
                return process
        return None

    def wait_until_gone(self, seconds: float) -> tuple[float, list[str]]:
        """Wait until none is left; how long it took, and who is left."""
        began = time.monotonic()
        while True:
            left = self.alive()
            waited = time.monotonic() - began
            if not left or waited > seconds:
                return waited, sorted(self.names[process.pid] for process in left)
            time.sleep(0.1)

    def left_behind(self) -> list[str]:
        """Files of shared memory that outlive the processes."""
        return [name for name in sorted(self.shared) if os.path.exists(name)]

    def sockets(self) -> list[Path]:
        """Files of sockets among their temporary files."""
        return sorted(path for path in self.folder.rglob("*") if path.is_socket())


def _name(process: psutil.Process) -> str:
    """The role of a process, by the title that vLLM gives it."""
    title = " ".join(process.cmdline()) or process.name()
    for mark, role in (
        ("EngineCore", "engine"),
        ("Worker", "worker"),
        ("resource_tracker", "tracker"),
        ("serve", "server"),
    ):
        if mark in title:
            return role
    return "other"


def _shared_memory(pid: int) -> set[str]:
    found = set()
    try:
        for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
            name = line[73:] if len(line) > 73 else ""
            if name.startswith(SHARED_MEMORY) and not name.endswith(" (deleted)"):
                found.add(name)
    except (OSError, UnicodeDecodeError):
        pass
    return found


def megabytes(memory: dict[str, int]) -> dict[str, float]:
    """The same in MB."""
    return {name: round(value / 1e6, 1) for name, value in memory.items()}
