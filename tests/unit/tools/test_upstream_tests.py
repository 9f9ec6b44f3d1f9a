# SPDX-License-Identifier: Apache-2.0
"""How outcomes of vllm-ascend's own tests are told apart. None of its tests is run here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import upstream_reasons
import upstream_tests
from upstream_reasons import Reason
from upstream_tests import FAILED, NOT_APPLICABLE, PASSED, SKIPPED, Batch, Outcome

REPORT = """<testsuites><testsuite>
<testcase classname="tests.ops.test_a" name="test_good"/>
<testcase classname="tests.ops.test_a" name="test_bad[1]"><failure message="E: wrong">x</failure>
</testcase>
<testcase classname="tests.ops.test_a" name="test_no"><skipped message="not here"/></testcase>
<testcase classname="tests.ops.test_b" name="test_err"><error message="boom: no card">y</error>
</testcase>
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


def names(batches: list[Batch]) -> list[list[str]]:
    return [[path.name for path in batch.files] for batch in batches]


def test_operators_by_file_and_units_by_folder(checkout: Path) -> None:
    assert names(upstream_tests.batches(checkout, "operators", [])) == [["test_a.py"]]
    assert names(upstream_tests.batches(checkout, "unit", [])) == [
        ["test_b.py", "test_c.py"],
        ["test_d.py"],
    ]
    assert names(upstream_tests.batches(checkout, "unit", ["ut/y"])) == [["test_d.py"]]


def test_outcomes_are_read_from_pytests_report(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    assert [(name, outcome) for name, outcome, _ in upstream_tests.cases(report)] == [
        ("tests.ops.test_a::test_good", PASSED),
        ("tests.ops.test_a::test_bad[1]", FAILED),
        ("tests.ops.test_a::test_no", SKIPPED),
        ("tests.ops.test_b::test_err", FAILED),
    ]


def test_a_reason_needs_its_test_and_its_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream_reasons, "REASONS", (Reason(r"test_b", r"no card", "one card"),))
    judged = upstream_tests.judged
    assert judged("test_b::x", FAILED, "boom: no card").outcome == NOT_APPLICABLE
    assert judged("test_b::x", FAILED, "boom: no card").reason == "one card"
    assert judged("test_b::x", FAILED, "other").outcome == FAILED
    assert judged("test_a::x", FAILED, "boom: no card").outcome == FAILED
    assert judged("test_b::x", PASSED, "").outcome == PASSED


def test_the_report_names_failures_and_counts_reasons() -> None:
    text = upstream_tests.report_of(
        [
            Outcome("a", PASSED),
            Outcome("b", NOT_APPLICABLE, "one card"),
            Outcome("c", NOT_APPLICABLE, "one card"),
            Outcome("d", FAILED, "E: wrong\nmore"),
        ]
    )
    assert text.splitlines() == [
        "FAILED d",
        "    E: wrong",
        "not applicable (2): one card",
        "1 passed, 2 not applicable, 1 failed",
    ]


DYING = """
import pathlib, sys
report = sys.argv[1]
if "test_c.py" not in " ".join(sys.argv):
    pathlib.Path(report).write_text(
        '<testsuites><testcase classname="t" name="n"/></testsuites>'
    )
"""


def test_a_process_that_dies_is_run_file_by_file(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        upstream_tests,
        "command",
        lambda batch, repository, report: [
            *(sys.executable, "-c", DYING, str(report)),
            *map(str, batch.files),
        ],
    )
    (batch,) = upstream_tests.batches(checkout, "unit", ["ut/x"])
    outcomes = upstream_tests.run(batch, checkout)
    assert [outcome.outcome for outcome in outcomes] == [PASSED, FAILED]
    assert outcomes[1].test.endswith("x/test_c.py")


def test_what_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        upstream_tests.main(["--repo", str(tmp_path)])
    assert "give a checkout of vllm-ascend" in capsys.readouterr().err
