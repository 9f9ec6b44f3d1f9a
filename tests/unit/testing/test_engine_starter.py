# SPDX-License-Identifier: Apache-2.0
"""The process that forks for each engine, with a small program in an engine's place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mkv_ascend.testing import engine_starter

STAND_IN = """
import sys, time
from mkv_ascend.testing import engine, engine_starter
def main(request, answer):
    seconds = float(open(request).read())
    print("slept", seconds, flush=True)
    if seconds < 0:
        raise ValueError("no such scenario")
    time.sleep(seconds)
    open(answer, "w").write("done")
engine.main = main
engine_starter.IMPORTED_BEFORE = ()
engine_starter.main()
"""


@pytest.fixture
def starter(monkeypatch):
    started = subprocess.Popen

    def popen(command, **options):
        assert command[1:] == ["-m", "mkv_ascend.testing.engine_starter"]
        return started([sys.executable, "-c", STAND_IN], **options)

    monkeypatch.setattr(engine_starter.subprocess, "Popen", popen)
    starter = engine_starter.EngineStarter(os.environ)
    yield starter
    starter.stop()


def run(starter, folder: Path, seconds: float, timeout: float):
    request, answer, log = folder / "request", folder / "answer", folder / "log"
    request.write_text(str(seconds))
    answer.unlink(missing_ok=True)
    in_time = starter.run(request, answer, log, timeout)
    return in_time, answer.exists(), log.read_text()


def test_one_engine_after_another_each_with_a_log_of_its_own(starter, tmp_path):
    assert run(starter, tmp_path, 0.0, 30) == (True, True, "slept 0.0\n")
    assert run(starter, tmp_path, 0.1, 30) == (True, True, "slept 0.1\n")


def test_an_engine_that_takes_too_long_is_ended_and_the_next_one_runs(starter, tmp_path):
    assert run(starter, tmp_path, 60.0, 1) == (False, False, "slept 60.0\n")
    assert run(starter, tmp_path, 0.0, 30)[:2] == (True, True)


def test_an_error_is_in_the_log_and_gives_no_answer(starter, tmp_path):
    in_time, answered, log = run(starter, tmp_path, -1.0, 30)
    assert (in_time, answered) == (True, False)
    assert "ValueError: no such scenario" in log
