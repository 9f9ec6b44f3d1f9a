# SPDX-License-Identifier: Apache-2.0
"""A failed command of the set-up ends in one line that says what to do."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

import step_runner
from step_runner import SetupError, diagnose, run_logged, summarise


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("x.cpp:3: fatal error: x.h: No such file", "`fatal error: x.h: No such file`"),
        ("socket.gaierror: [Errno -3] Temporary failure in name resolution", "a download failed"),
        ("ERROR: HTTP error 503 while getting https://example.org/x.whl", "a download failed"),
        ("ERROR: No matching distribution found for torch==2.13.0", "no torch==2.13.0 for this"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "MAX_JOBS=1"),
        ("a.cpp:7:3: error: expected ';' before 'x'", "expected ';' before 'x'"),
        ("something else\nat the end\n\n", "`at the end`"),
        ("", "it printed nothing"),
    ],
)
def test_diagnosis_is_one_line_with_advice(output: str, expected: str) -> None:
    text = diagnose(output)
    assert expected in text
    assert "\n" not in text


def test_disk_full_wins_over_the_download_that_failed_from_it() -> None:
    output = "ReadTimeout\nERROR: Could not install: [Errno 28] No space left on device\n"
    assert "disk is full" in diagnose(output)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Collecting numpy==2.2.6 (from -r x)", "Collecting numpy==2.2.6"),
        ("  Downloading https://host/a/torch-2.13.0.whl (190 MB)", "Downloading torch-2.13.0.whl "),
        ("Installing collected packages: a, b", "Installing what was downloaded"),
        ("[3/12] Building CXX object device.o", "[3/12] Building CXX object device.o"),
        ("Requirement already satisfied: numpy", None),
    ],
)
def test_status_line(line: str, expected: str | None) -> None:
    status = summarise(line)
    assert status is None if expected is None else str(status).startswith(expected)


def run_python(code: str, log: Path, stream: io.StringIO) -> float:
    return run_logged([sys.executable, "-c", code], dict(os.environ), log.parent, log, stream)


def test_output_goes_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "setup.log"
    run_python("print('first')", log, io.StringIO())
    run_python("import sys; print('second', file=sys.stderr)", log, io.StringIO())
    assert "first\n" in log.read_text()
    assert "second\n" in log.read_text()


def test_failure_names_cause_and_log(tmp_path: Path) -> None:
    log = tmp_path / "setup.log"
    with pytest.raises(SetupError, match=r"disk is full.*setup\.log") as raised:
        run_python("print('No space left on device'); raise SystemExit(1)", log, io.StringIO())
    assert "\n" not in str(raised.value)


def test_command_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot start no-such-program"):
        run_logged(["no-such-program"], dict(os.environ), tmp_path, tmp_path / "log", io.StringIO())


def test_long_command_shows_that_it_lives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_runner, "HEARTBEAT_SECONDS", 0.05)
    stream = io.StringIO()
    code = "import time; print('Collecting numpy==1', flush=True); time.sleep(0.5)"
    run_python(code, tmp_path / "log", stream)
    assert stream.getvalue().count("Collecting numpy==1") >= 2
