# SPDX-License-Identifier: Apache-2.0
"""`make test` runs every check, tells which failed, and fails if any did."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import checks
from checks import Check, Outcome, all_checks, summary

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


@pytest.mark.usefixtures("two_checks")
def test_an_unknown_group_is_named() -> None:
    with pytest.raises(SystemExit):
        checks.main(["goood"])


def test_an_unknown_host_is_refused_with_the_hosts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        checks.main(["--host", "0.31"])
    assert "no host '0.31': HOST is one of 0.23 (" in capsys.readouterr().err


def test_sources_are_looked_at_on_one_host_and_tests_run_on_each_in_its_environment() -> None:
    first, second = (all_checks(Path("."), host) for host in ("0.23", "0.30"))
    assert {c.group for c in first} - {c.group for c in second} == checks.HOSTLESS
    assert {c.command[0].partition("/")[0] for c in first} == {".venv"}
    assert {c.command[0].partition("/")[0] for c in second} == {".venv-0.30"}


@pytest.mark.usefixtures("two_checks")
def test_what_test_has_no_time_for_is_run_by_test_all(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(checks, "BEHIND_TEST", frozenset({"bad"}))
    assert checks.main([]) == 0
    assert checks.main(["--all"]) == 1
    capfd.readouterr()


def test_a_missing_tool_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = checks.run(Check("x", "x", (str(tmp_path / "absent"),)), tmp_path, {})
    assert outcome.status != 0
    assert "make setup" in capfd.readouterr().out


def test_emulated_tests_run_strict_and_one_thread_each(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
        assert checks.child_environment()[name] == "1"
    monkeypatch.delenv("VLLM_CACHE_ROOT", raising=False)
    hosts = ("0.23", "0.30")
    assert len({checks.child_environment(host)["VLLM_CACHE_ROOT"] for host in hosts}) == 2
    for group in ("core", "rest"):
        (engines,) = (c for c in all_checks(Path(".")) if c.group == group)
        assert "--strict" in engines.command


@pytest.mark.parametrize(
    ("cores", "gib", "workers"), [(2, 7.8, 2), (2, 16.0, 2), (1, 2.0, 2), (16, 31.0, 7)]
)
def test_engines_have_the_memory_they_need(cores: int, gib: float, workers: int) -> None:
    assert checks.emulated_workers(cores, gib) == workers


def test_lanes_run_side_by_side_and_say_whose_line_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each waits for a file that the other makes; the second of a lane for the first of it."""
    wait = (
        "import pathlib, sys, time\n"
        "made, awaited = map(pathlib.Path, sys.argv[1:])\n"
        "made.touch()\n"
        "ends = time.monotonic() + 60\n"
        "while not awaited.exists() and time.monotonic() < ends: time.sleep(0.01)\n"
        "print('met', flush=True)\n"
        "sys.exit(not awaited.exists())\n"
    )
    paths = str(tmp_path / "one"), str(tmp_path / "two")
    chosen = [
        Check("good", "meets", (sys.executable, "-c", wait, *paths)),
        Check("bad", "fails", FAILS.command),
        Check("more", "meets too", (sys.executable, "-c", wait, *paths[::-1]), lane="engines"),
    ]
    monkeypatch.setattr(checks, "all_checks", lambda *_: chosen)
    assert checks.main([]) == 1
    lines = capfd.readouterr().out.splitlines()
    assert sorted(line for line in lines if line.endswith("met")) == [
        "code    | met",
        "engines | met",
    ]
    assert [line.split("  ")[1] for line in lines if line.startswith("  ")] == [
        "meets",
        "fails",
        "meets too",
    ]
    assert lines[-1].endswith("failed: fails")


def test_summary_of_a_good_run() -> None:
    assert summary([Outcome(PASSES, 0, 1.5)], 1.5).endswith("1 checks in 2 s, all passed")


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
