# SPDX-License-Identifier: Apache-2.0
"""`make test` runs every check, tells which failed, and fails if any did."""

import sys
from pathlib import Path

import pytest

import checks
from checks import Check

PASSES = Check("good", "passes", (sys.executable, "-c", "print('ran')"))
FAILS = Check("bad", "fails", (sys.executable, "-c", "raise SystemExit(5)"))


@pytest.fixture
def two_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "all_checks", lambda *_: [FAILS, PASSES])


@pytest.mark.usefixtures("two_checks")
def test_a_failure_does_not_stop_the_rest(capfd: pytest.CaptureFixture[str]) -> None:
    assert checks.main([]) == 1
    output = capfd.readouterr().out
    assert "\nran\n" in output
    assert "FAILED (status 5)" in output
    assert "failed: fails" in output


@pytest.mark.usefixtures("two_checks")
def test_a_named_group_runs_alone(capfd: pytest.CaptureFixture[str]) -> None:
    assert checks.main(["good"]) == 0
    assert "fails" not in capfd.readouterr().out


def test_an_unknown_host_is_refused_with_the_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        checks.main(["--host", "0.31"])
    assert "no host '0.31': HOST is one of 0.23 (" in capsys.readouterr().err


def test_a_missing_tool_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = checks.run(Check("x", "x", (str(tmp_path / "absent"),)), tmp_path, {})
    assert outcome.status != 0
    assert "make setup" in capfd.readouterr().out


def test_the_summary_names_the_tests_that_failed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """They stand thousands of lines above it, and a page of CI may not show them."""
    said = (
        "print('FAILED a.py::test_b - assert 1 == 2'); print('SKIPPED [1] c'); raise SystemExit(1)"
    )
    fails = Check("bad", "fails", (sys.executable, "-c", said), lane="engines")
    monkeypatch.setattr(checks, "all_checks", lambda *_: [PASSES, fails])
    assert checks.main([]) == 1
    lines = capfd.readouterr().out.partition("== summary")[2].splitlines()
    assert lines[-2] == "    FAILED a.py::test_b - assert 1 == 2"
    assert not any("SKIPPED" in line for line in lines)
