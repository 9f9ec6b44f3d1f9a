# SPDX-License-Identifier: Apache-2.0
"""A server whose clock can jump or whose ``/dev/shm`` can be filled, and nobody else's.

The clock is libfaketime's (Debian: ``faketime``), which the server's processes load; waiting goes
by the monotonic clock, which never jumps. ``/dev/shm`` is a small file system of the server's own,
in a mount namespace. libfaketime keeps files in ``/dev/shm``, so a server has one or the other.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

SHARED_MIB = 256
"""Of the server's ``/dev/shm``: four times what a container has by default, so that it starts."""
CLOCK_LIBRARIES = ("usr/lib/*/faketime/libfaketimeMT.so.1", "usr/local/lib/faketime/*MT.so.1")
MOUNT = f'mount -t tmpfs -o size={SHARED_MIB}m tmpfs /dev/shm && exec "$0" "$@"'


class MachineError(RuntimeError):
    """The machine cannot be given such faults; the text says what to change."""


@dataclass(frozen=True)
class Machine:
    """How a server is started so that it sees a machine of its own.

    Attributes:
        variables: of the server's environment.
        command: goes before the server's, whose process it becomes.
        clock: says how far the server's clock is off; None: it has the machine's.
    """

    variables: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    clock: Path | None = None

    def set_clock(self, seconds: float) -> None:
        """Let the server's clock be so far ahead of the real one."""
        assert self.clock is not None, "the server has the machine's clock"
        aside = self.clock.with_suffix(".new")
        aside.write_text(f"{seconds:+.3f}s\n")
        aside.replace(self.clock)

    @staticmethod
    def fill(pid: int) -> Path:
        """Leave no byte of the server's ``/dev/shm``; the file that takes them all."""
        file = Path("/proc", str(pid), "root", "dev/shm/full")
        with file.open("wb", buffering=0) as full:
            for size in (1 << 20, 1 << 12):
                try:
                    while full.write(bytes(size)) == size:
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
        return file


def machine_of(kinds: Sequence[str], folder: Path) -> Machine:
    """What such kinds of faults take; ``folder``: for a file that tells a clock's error.

    Raises:
        MachineError: they take unlike machines, or something is not installed.
    """
    if {"clock", "memory"} <= {*kinds}:
        raise MachineError("kinds clock and memory take a run each: leave one of them out")
    if "clock" in kinds:
        return _with_clock(folder / "clock")
    return _with_memory() if "memory" in kinds else Machine()


def _with_clock(clock: Path) -> Machine:
    libraries = [path for pattern in CLOCK_LIBRARIES for path in Path("/").glob(pattern)]
    if not libraries:
        raise MachineError("no libfaketime here to let a clock jump: apt-get install faketime")
    variables = {
        "LD_PRELOAD": f"{_real_sleep(clock.parent)} {libraries[0]}",
        "FAKETIME_TIMESTAMP_FILE": str(clock),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_RESET": "1",
    }
    machine = Machine(variables, clock=clock)
    machine.set_clock(0.0)
    return machine


def _real_sleep(folder: Path) -> Path:
    """A library with which ``time.sleep`` works beside libfaketime's clock."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise MachineError("no C++ compiler here for what clocks that jump need: set CXX")
    library = folder / "monotonic_sleep.so"
    source = Path(__file__).with_name("monotonic_sleep.cpp")
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


def _with_memory() -> Machine:
    if shutil.which("unshare") is None:
        raise MachineError("no unshare here to fill /dev/shm: apt-get install util-linux")
    user = () if os.geteuid() == 0 else ("--user", "--map-root-user")
    return Machine(command=("unshare", *user, "--mount", "sh", "-c", MOUNT))
