# SPDX-License-Identifier: Apache-2.0
"""A server's own clock and shared memory: how they are asked for, and what is said without them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from reliability import machine
from reliability.fault_cases import OF_MACHINE
from reliability.machine import MachineError, machine_of


def test_a_server_has_a_clock_or_a_memory_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="leave one of them out"):
        machine_of(OF_MACHINE, tmp_path)


@pytest.mark.skipif(
    not any(True for pattern in machine.CLOCK_LIBRARIES for _ in Path("/").glob(pattern)),
    reason="libfaketime is not installed",
)
def test_a_process_sleeps_as_long_as_it_asks_for_while_its_clock_jumps(tmp_path: Path) -> None:
    made = machine_of(["clock"], tmp_path)
    made.set_clock(-98.9)
    before = time.time()
    program = "import time; a = time.monotonic(); time.sleep(0.2); b = time.monotonic()"
    program += "; print(b - a, time.time())"
    printed = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **made.variables},
        capture_output=True,
        text=True,
        check=True,
    )
    slept, clock = map(float, printed.stdout.split())
    assert 0.2 <= slept < 5.0
    assert -98.9 <= clock - before < -60.0


def test_a_clock_without_a_compiler_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "libfaketimeMT.so.1").touch()
    monkeypatch.setattr(machine, "CLOCK_LIBRARIES", (str(tmp_path / "lib*")[1:],))
    monkeypatch.setattr(machine.shutil, "which", lambda program: None)
    with pytest.raises(MachineError, match="set CXX"):
        machine_of(["clock"], tmp_path)


@pytest.mark.parametrize(("kind", "package"), [("clock", "faketime"), ("memory", "util-linux")])
def test_what_is_not_installed_is_named(
    kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "CLOCK_LIBRARIES", ())
    monkeypatch.setattr(machine.shutil, "which", lambda program: None)
    with pytest.raises(MachineError, match=f"apt-get install {package}"):
        machine_of([kind], tmp_path)
