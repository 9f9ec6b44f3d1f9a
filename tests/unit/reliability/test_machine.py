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
from reliability.fault_cases import KINDS, OF_MACHINE
from reliability.machine import Machine, MachineError, machine_of


def test_other_kinds_leave_the_machine_as_it_is(tmp_path: Path) -> None:
    assert machine_of([kind for kind in KINDS if kind not in OF_MACHINE], tmp_path) == Machine()


def test_a_server_has_a_clock_or_a_memory_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="leave one of them out"):
        machine_of(OF_MACHINE, tmp_path)


def test_a_clock_is_loaded_and_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libfaketimeMT.so.1"
    library.touch()
    monkeypatch.setattr(machine, "CLOCK_LIBRARIES", (str(library)[1:],))
    made = machine_of(["clock"], tmp_path)
    sleep = tmp_path / "monotonic_sleep.so"
    assert made.variables["LD_PRELOAD"] == f"{sleep} {library}"
    assert made.command == ()
    file = Path(made.variables["FAKETIME_TIMESTAMP_FILE"])
    assert file.read_text() == "+0.000s\n"
    made.set_clock(-98.9)
    assert file.read_text() == "-98.900s\n"
    # Waiting goes on by the real time.
    assert made.variables["FAKETIME_DONT_FAKE_MONOTONIC"] == "1"


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


def test_memory_is_a_file_system_of_the_servers_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.shutil, "which", lambda program: f"/bin/{program}")
    made = machine_of(["memory"], tmp_path)
    assert made.variables == {}
    assert made.command[0] == "unshare"
    assert "size=256m tmpfs /dev/shm" in made.command[-1]


@pytest.mark.parametrize(("kind", "package"), [("clock", "faketime"), ("memory", "util-linux")])
def test_what_is_not_installed_is_named(
    kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "CLOCK_LIBRARIES", ())
    monkeypatch.setattr(machine.shutil, "which", lambda program: None)
    with pytest.raises(MachineError, match=f"apt-get install {package}"):
        machine_of([kind], tmp_path)
