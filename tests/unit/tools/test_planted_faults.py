# SPDX-License-Identifier: Apache-2.0
"""The list of planted faults fits the sources; what the program makes of them. No engine runs."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import planted_faults
from planted_faults import BROKEN, CAUGHT, SAME, SURVIVES, Bench, Fault, check

TESTS, PACKAGE = "tests", "mkv_ascend"
"""Folders of a clone that this file makes; what is in them is not in ours."""
FAULT = Fault(
    name="the bound is inside",
    file="bounds.py",
    text="number < BOUND",
    instead="number <= BOUND",
    wrong="One number too many.",
    tests=(f"{TESTS}/test_bounds.py::test_bound",),
)
TEST = """
from mkv_ascend.adapters.bounds import is_inside

def test_bound():
    assert not is_inside(3)

def test_other():
    assert is_inside(2)
"""


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one adapter and one test; pytest without plugins starts sooner."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for file, text in {
        FAULT.path: "BOUND = 3\n\ndef is_inside(number):\n    return number < BOUND\n",
        f"{PACKAGE}/__init__.py": "",
        f"{PACKAGE}/adapters/__init__.py": "",
        f"{TESTS}/test_bounds.py": TEST,
        "pytest.ini": "[pytest]\npythonpath = .\n",
    }.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    return tmp_path


def test_every_fault_can_be_planted_and_has_its_tests() -> None:
    assert check(planted_faults.FAULTS, planted_faults.ROOT) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"text": "BOUND"}, "occurs 2 times"),
        ({"text": "no such line"}, "occurs 0 times"),
        ({"instead": "number <"}, "invalid syntax"),
        ({"file": "none.py"}, f"no file {PACKAGE}/adapters/none.py"),
        ({"file": "csrc/none"}, "no file csrc/none"),
        ({"tests": (f"{TESTS}/test_bounds.py::test_none",)}, "test_bounds.py::test_none"),
        ({"tests": ()}, "name tests, or why"),
        ({"same": "nobody asks"}, "name tests, or why"),
    ],
)
def test_a_list_that_is_out_of_date_is_told(changed, said: str, clone: Path) -> None:
    assert check([FAULT], clone) == []
    (found,) = check([replace(FAULT, **changed)], clone)
    assert said in found
    assert repr(FAULT.name) in found
    assert check([FAULT, FAULT], clone) == ["two faults are named 'the bound is inside'"]


def test_each_fault_is_judged_once_and_taken_back(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    unnoticed = replace(FAULT, name="unnoticed", tests=(f"{TESTS}/test_bounds.py::test_other",))
    # As long as the right one, and written in the same second.
    missing = replace(FAULT, name="no name", instead="numbex < BOUND")
    same = replace(FAULT, name="same", tests=(), same="nobody asks")
    faults, kept = [FAULT, unnoticed, missing, same], tmp_path / "kept.json"
    before, bench = (clone / FAULT.path).read_text(), Bench(clone, clone, [sys.executable])
    found = planted_faults.run(faults, bench, kept)
    assert [one["outcome"] for one in found.values()] == [CAUGHT, SURVIVES, BROKEN, SAME]
    assert "assert not True" in found[FAULT.name]["reason"]
    assert (clone / FAULT.path).read_text() == before
    assert json.loads(kept.read_text()) == found
    capsys.readouterr()
    assert planted_faults.run([replace(unnoticed, instead="True"), FAULT], bench, kept)
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == [SURVIVES]
