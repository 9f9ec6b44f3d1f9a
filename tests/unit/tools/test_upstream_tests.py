# SPDX-License-Identifier: Apache-2.0
"""How outcomes of vllm-ascend's own tests are sorted. None of its tests is run here."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest

import upstream_processes
import upstream_reasons
import upstream_tests
from emulated_npu.operators import registry
from emulated_npu.settings import EmulatorSettings
from upstream_processes import FAILED, PASSED, SKIPPED, Outcome, Runner, Setting
from upstream_reasons import GAP, Reason
from upstream_tests import Judgement

UNIT, NIGHTLY = "tests/ut", "tests/e2e/nightly"

REPORT = """<testsuites><testsuite>
<testcase classname="tests.ops.test_a" name="test_good"/>
<testcase classname="tests.ops.test_a" name="test_bad[1]"><failure message="E: wrong">x</failure>
</testcase>
<testcase classname="tests.ops.test_a" name="test_no"><skipped message="not here"/></testcase>
<testcase classname="tests.ops.test_a.TestB" name="test_err"><error message="no card">y</error>
</testcase>
<testcase classname="" name="tests.ops.test_a"><error message="boom">z</error></testcase>
</testsuite></testsuites>"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for folder, letter in (
        ("e2e/nightly/single/ops", "a"),
        ("e2e/nightly/single/models", "m"),
        ("ut/x", "b"),
        ("ut/x", "c"),
        ("ut/y", "d"),
    ):
        file = tmp_path / "tests" / folder / f"test_{letter}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return tmp_path


def test_outcomes_are_read_from_pytests_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    found = list(upstream_processes.cases(report, f"{UNIT}/test_a.py"))
    assert {one.file for one in found} == {f"{UNIT}/test_a.py"}
    assert [(one.test, one.outcome) for one in found] == [
        ("tests.ops.test_a::test_good", PASSED),
        ("tests.ops.test_a::test_bad[1]", FAILED),
        ("tests.ops.test_a::test_no", SKIPPED),
        ("tests.ops.test_a.TestB::test_err", FAILED),
        ("::tests.ops.test_a", FAILED),
    ]
    assert [one.error for one in found] == ["", "E: wrong\nx", "not here", "no card\ny", "boom\nz"]


def test_a_reason_needs_its_test_and_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        upstream_reasons, "REASONS", (Reason(r"test_b", r"no card", "one card", GAP),)
    )

    def judged(test: str, outcome: str, error: str) -> Judgement:
        return upstream_tests.judged(Outcome("b.py", test, outcome, error))

    assert judged("test_b::x", FAILED, "boom: no card").outcome == GAP
    assert judged("test_b::x", FAILED, "boom: no card").reason == "one card"
    assert judged("test_b::x", FAILED, "other").outcome == FAILED
    assert judged("test_a::x", FAILED, "boom: no card").outcome == FAILED
    assert judged("test_b::x", PASSED, "").outcome == PASSED


WRONG_RESULTS = (
    "AssertionError: assert False\n +  where False = allclose(...)",
    "AssertionError: assert tensor(False)",
    "AssertionError: Tensor-likes are not close!\n\nMismatched elements: 1 / 4096 (0.0%)",
    "AssertionError: Tensor-likes are not equal!",
    "AssertionError: 0.5 not less than or equal to 1e-05 : Absolute error too large",
    "AssertionError: False is not true",
    "AssertionError: Lists differ: [1] != [2]",
    "assert 1 == 2",
)


def test_a_reason_that_accepts_a_wrong_result_names_the_test_that_judges_it() -> None:
    root = Path(upstream_reasons.__file__).parents[1]
    for reason in upstream_reasons.REASONS:
        accepting = [error for error in WRONG_RESULTS if re.search(reason.error, error)]
        assert bool(accepting) == bool(reason.judged_by), (reason, accepting)
        if reason.judged_by:
            file, _, name = reason.judged_by.partition("::")
            assert f"\ndef {name}(" in (root / file).read_text(), reason


PROGRAM = """
import pathlib, sys, time
how = pathlib.Path(sys.argv[-1]).stem
folder, report = sys.argv[1], next(a for a in sys.argv if a.startswith("--junitxml="))
if how == "test_c":
    sys.exit("no such card")
if how == "test_d":
    time.sleep(60)
case = f'<testsuites><testcase classname="{how}" name="n"/></testsuites>'
pathlib.Path(report.split("=")[1]).write_text(case)
"""


class Starter:
    """Starts a new Python for each program instead of forking one that has imported vLLM."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = environment

    def run(
        self, program: str, arguments: Sequence[str], output: Path, errors: Path, timeout: float
    ) -> int | None:
        del errors
        with output.open("w") as log:
            try:
                return subprocess.run(
                    [sys.executable, program, *arguments],
                    env=self.environment,
                    stdout=log,
                    stderr=log,
                    timeout=timeout,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return None

    def stop(self) -> None:
        """Nothing runs."""


def test_a_file_whose_process_dies_or_hangs_has_failed(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr(upstream_processes, "PROGRAM", program)
    monkeypatch.setattr(upstream_processes, "TESTS_OF_A_FILE", 1)
    monkeypatch.setattr(upstream_processes, "ProgramStarter", Starter)
    files = upstream_processes.files_of(checkout, "unit", [])
    with Runner(Setting(checkout, seconds=3)) as runner:
        good, died, hung = (runner.run(file) for file in files)
    assert good == [Outcome(files[0], "test_b::n", PASSED)]
    (died,), (hung,) = died, hung
    assert died == Outcome(files[1], files[1], FAILED, "ended with 1: no such card\n")
    assert hung == Outcome(files[2], files[2], FAILED, "no end within 3 s")


def test_processes_are_emulated_and_told_of_a_device(tmp_path: Path) -> None:
    upstream_processes.make_stand_ins(tmp_path)
    made = upstream_processes.environment(tmp_path, stock=False)
    assert shutil.which("npu-smi", path=made["PATH"]) == str(tmp_path / "npu-smi")
    settings = EmulatorSettings.from_environment(made)
    assert settings.strict
    assert settings.has_triton
    assert made.get("VLLM_PLUGINS") == os.environ.get("VLLM_PLUGINS")
    assert upstream_processes.environment(tmp_path, stock=True)["VLLM_PLUGINS"] == "ascend"


def test_what_is_not_run_is_about_operators_that_are_not_there() -> None:
    registry.load_all()
    names = {name for entry in upstream_reasons.NOT_RUN for name in entry.operators}
    names |= set(upstream_reasons.NO_OPERATOR)
    assert not names & {operator.name for operator in registry.OPERATORS.values()}
    runner = cast(Runner, None)  # which nothing is asked
    file = f"{NIGHTLY}/ops/test_dispatch_ffn_combine.py"
    (outcome,) = upstream_tests.outcomes_of(file, runner)
    judged = upstream_tests.judged(outcome)
    assert judged.outcome == GAP
    assert "has no dispatch_ffn_combine" in judged.reason
