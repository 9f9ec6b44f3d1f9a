# SPDX-License-Identifier: Apache-2.0
"""The process that forks for each program, without what it imports first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import program_starter

LIGHT = """
from tests.support import program_starter
program_starter.import_what_engines_import = lambda: None
program_starter.main()
"""
PROGRAM = """
import atexit, os, sys, time
atexit.register(print, "left")
seconds = float(sys.argv[1])
print("slept", seconds, flush=True)
if seconds < 0:
    raise ValueError("no such time")
if seconds > 100:
    sys.exit("too long")
time.sleep(seconds)
print(__name__, os.getpid() == os.getsid(0), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def starter():
    started = subprocess.Popen

    def popen(command, **options):
        assert command[1:] == ["-m", "tests.support.program_starter"]
        return started([sys.executable, "-c", LIGHT], **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(program_starter.subprocess, "Popen", popen)
        starter = program_starter.ProgramStarter(os.environ)
    yield starter
    starter.stop()


def run(starter, folder: Path, seconds: float, timeout: float = 30):
    program, output, errors = folder / "program.py", folder / "output", folder / "errors"
    program.write_text(PROGRAM)
    status = starter.run(str(program), [str(seconds)], output, errors, timeout)
    return status, output.read_text(), errors.read_text()


def test_one_program_after_another_each_in_a_session_and_with_files_of_its_own(starter, tmp_path):
    own = "__main__ True\n"
    assert run(starter, tmp_path, 0.0) == (0, "slept 0.0\nleft\n", own)
    assert run(starter, tmp_path, 0.1) == (0, "slept 0.1\nleft\n", own)


def test_a_program_that_takes_too_long_is_ended_and_the_next_one_runs(starter, tmp_path):
    assert run(starter, tmp_path, 60.0, timeout=5) == (None, "slept 60.0\n", "")
    assert run(starter, tmp_path, 0.0)[0] == 0


def test_an_error_is_printed_and_is_the_status(starter, tmp_path):
    status, output, errors = run(starter, tmp_path, -1.0)
    assert (status, output) == (1, "slept -1.0\nleft\n")
    assert errors.strip().splitlines()[-1] == "ValueError: no such time"
    assert run(starter, tmp_path, 101.0) == (1, "slept 101.0\nleft\n", "too long\n")
