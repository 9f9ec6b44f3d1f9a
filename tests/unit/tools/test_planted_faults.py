# SPDX-License-Identifier: Apache-2.0
"""The list of planted faults fits the sources; what the program makes of them. No engine runs."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import fault_functions
import planted_faults
import pytest
from fault import Fault, OutOfDateError, check, is_inside_functions, read_faults
from fault_results import BROKEN, SAME, Results, outcome_of, table_of
from fault_server import HANGS
from fault_workplace import PLANTED, make_workplace, planted
from mutation_results import CAUGHT, SURVIVES, UNKNOWN

TESTS, DOCS, TOOLS, ADAPTER = "tests", "docs", "tools", "mkv_ascend"
"""Folders of a clone that this file makes; what is in them is not in ours."""
SOURCE = """
BOUND = 3

def is_inside(number, least=0):
    return least <= number < BOUND

class Counter:
    steps = [2 * step for step in range(2)]

    def further(self, number):
        return (lambda: number + 1)()
"""
FAULT = Fault(
    name="the bound is inside",
    file="bounds.py",
    text="number < BOUND",
    instead="number <= BOUND",
    wrong="One number too many.",
    tests=(f"{TESTS}/test_bounds.py::test_bound[3]",),
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository of one adapter and one test."""
    root = tmp_path / "root"
    for file, text in {
        FAULT.path: SOURCE,
        f"{TESTS}/test_bounds.py": "def test_bound(number): ...\n",
        f"{TOOLS}/tool.py": "",
        "benchmarks/run.py": "",
        "reliability/run.py": "",
        f"{DOCS}/page.md": "",
        "pyproject.toml": "",
    }.items():
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text(text)
    return root


def test_every_fault_can_be_planted_and_has_its_tests() -> None:
    assert check(planted_faults.FAULTS, planted_faults.ROOT) == []


def test_a_fault_lies_in_an_adapter_or_in_another_room() -> None:
    assert FAULT.path == f"{ADAPTER}/adapters/bounds.py"
    assert replace(FAULT, room="ops").path == f"{ADAPTER}/ops/bounds.py"


def test_lists_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    listed = {"name": "a", "file": "b.py", "text": ["one", "two"], "instead": "", "wrong": "c"}
    (tmp_path / "b.json").write_text(json.dumps([{**listed, "same": "nobody asks"}]))
    (tmp_path / "a.json").write_text(json.dumps([{**listed, "name": "d", "tests": ["e", "f"]}]))
    first, second = read_faults(tmp_path)
    assert (first.name, first.text, first.tests) == ("d", "one\ntwo", ("e", "f"))
    assert (second.name, second.instead, second.same) == ("a", "", "nobody asks")


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"text": "number"}, "occurs 4 times"),
        ({"text": "no such line"}, "occurs 0 times"),
        ({"instead": "number <"}, "invalid syntax"),
        ({"file": "none.py"}, f"no file {ADAPTER}/adapters/none.py"),
        (
            {"tests": (f"{TESTS}/test_bounds.py::test_other",)},
            f"no test {TESTS}/test_bounds.py::test_o",
        ),
        ({"tests": (f"{TESTS}/test_none.py",)}, f"no test {TESTS}/test_none.py"),
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


@pytest.mark.parametrize(
    ("text", "instead", "inside"),
    [
        ("number < BOUND", "number <= BOUND", True),
        ("number + 1", "number + 2", True),
        ("BOUND = 3", "BOUND = 4", False),
        ("least=0", "least=1", False),
        ("2 * step", "3 * step", True),
        ("range(2)", "range(3)", False),
        ("def further(self, number)", "def further(self, number, more=0)", False),
    ],
)
def test_what_a_loaded_module_did_by_itself_cannot_be_exchanged(
    text: str, instead: str, inside: bool
) -> None:
    assert SOURCE.count(text) == 1
    assert is_inside_functions(SOURCE, SOURCE.replace(text, instead)) is inside


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("bounds_of_faults", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("lines", ["", "\n\n"])
def test_functions_of_a_loaded_module_become_those_of_the_planted_file(
    lines: str, tmp_path: Path
) -> None:
    path = tmp_path / "bounds.py"
    path.write_text(SOURCE)
    module = load(path)
    kept, counter = module.is_inside, module.Counter()
    assert [kept(3), kept(0), counter.further(1)] == [False, True, 2]
    after = SOURCE.replace("\ndef", f"{lines}\ndef").replace("number < BOUND", "number <= BOUND")
    fault_functions.exchange(str(path), SOURCE, after.replace("number + 1", "number + 5"))
    assert [kept(3), kept(4), counter.further(1)] == [True, False, 6]


def test_two_functions_that_cannot_be_told_apart_are_an_error(tmp_path: Path) -> None:
    source = "PAIR = (lambda: 1), (lambda: 2)\n"
    with pytest.raises(ValueError, match="two functions <lambda> begin in line 1"):
        fault_functions.exchange(str(tmp_path / "pair.py"), source, source)


def test_a_fork_is_given_the_fault_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bounds.py"
    path.write_text(SOURCE)
    module = load(path)
    path.write_text(FAULT.planted(SOURCE))
    monkeypatch.setattr(fault_functions, "FOLDER", str(tmp_path))
    monkeypatch.setattr(fault_functions, "_planted", "")
    fault_functions.plant()
    assert not module.is_inside(3)
    order = {"name": FAULT.name, "file": str(path), "before": SOURCE}
    (tmp_path / PLANTED).write_text(json.dumps(order))
    fault_functions.plant()
    assert module.is_inside(3)
    path.write_text("def")
    fault_functions.plant()
    assert not (tmp_path / "errors.txt").exists()
    monkeypatch.setattr(fault_functions, "_planted", "")
    fault_functions.plant()
    assert "SyntaxError" in (tmp_path / "errors.txt").read_text()


def test_a_fault_is_in_the_copy_alone_and_is_taken_back(clone: Path, tmp_path: Path) -> None:
    place = make_workplace(clone, tmp_path / "0.23")
    copy = place / FAULT.path
    times = [copy.stat().st_mtime]

    def be_stopped() -> None:
        with planted(FAULT, place):
            assert "number <= BOUND" in copy.read_text()
            times.append(copy.stat().st_mtime)
            assert json.loads((place.parent / PLANTED).read_text())["before"] == SOURCE
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        be_stopped()
    times.append(copy.stat().st_mtime)
    assert len({int(time) for time in times}) == 3  # else Python would take what it has compiled
    assert copy.read_text() == (clone / FAULT.path).read_text() == SOURCE
    assert not (place.parent / PLANTED).exists()


def test_a_copy_follows_the_clone(clone: Path, tmp_path: Path) -> None:
    place = make_workplace(clone, tmp_path / "0.23")
    (place / FAULT.path).write_text("a fault of a run that was killed")
    (place / f"{TESTS}/test_gone.py").write_text("")
    (clone / f"{TESTS}/test_new.py").write_text("")
    for root in (place, clone):
        (root / ".hypothesis").mkdir()
    unchanged = (place / f"{TESTS}/test_bounds.py").stat().st_mtime
    assert make_workplace(clone, tmp_path / "0.23") == place
    assert (place / FAULT.path).read_text() == SOURCE
    assert {path.name for path in (place / "tests").iterdir()} == {"test_bounds.py", "test_new.py"}
    assert (place / f"{TESTS}/test_bounds.py").stat().st_mtime == unchanged
    assert (place / "pyproject.toml").resolve() == clone / "pyproject.toml"


@pytest.mark.parametrize(
    ("status", "printed", "outcome", "reason"),
    [
        (0, "", SURVIVES, ""),
        (
            1,
            f"E       assert 3 == 4\nFAILED {TESTS}/unit/test_a.py::test_b - assert 3 == 4\n",
            CAUGHT,
            "unit/test_a.py::test_b: assert 3 == 4",
        ),
        (HANGS, "", CAUGHT, "hangs, or ends the process"),
        (
            1,
            f"E   NameError: name 'x'\nFAILED {TESTS}/a.py::test_b\n",
            BROKEN,
            "NameError: name 'x'",
        ),
        (2, f"ERROR {TESTS}/a.py - ImportError: no name\n", BROKEN, "ImportError: no name"),
        (5, "no tests ran\n", BROKEN, "pytest ended with 5: see "),
    ],
)
def test_a_fault_that_cannot_be_imported_counts_as_none(
    status: int, printed: str, outcome: str, reason: str, tmp_path: Path
) -> None:
    log = tmp_path / "a.log"
    log.write_text(printed)
    found, why = outcome_of(status, log)
    assert found == outcome
    assert why == reason if status != 5 else why.startswith(reason)


def test_a_verdict_lasts_until_the_fault_its_file_or_its_tests_change(clone: Path) -> None:
    path = clone / "results.json"
    Results.read(path).note(FAULT, clone, SURVIVES, "")

    def outcome(fault: Fault = FAULT) -> str:
        return Results.read(path).outcome(fault, clone)

    assert outcome() == SURVIVES
    assert outcome(replace(FAULT, wrong="Said otherwise.")) == SURVIVES
    assert outcome(replace(FAULT, instead="number >= BOUND")) == UNKNOWN
    assert outcome(replace(FAULT, same="nobody asks for it", tests=())) == SAME
    for name in (FAULT.path, f"{TESTS}/test_bounds.py"):
        before = (clone / name).read_text()
        (clone / name).write_text(f"{before}# another line\n")
        assert outcome() == UNKNOWN
        (clone / name).write_text(before)
        assert outcome() == SURVIVES


def test_tests_that_passed_run_again_when_the_package_changes(clone: Path) -> None:
    test = FAULT.tests[0]
    before = Results.digest_of_test(clone, test)
    (clone / f"{ADAPTER}/other.py").write_text("")
    (clone / f"{ADAPTER}/other.py").write_text("changed = True\n")
    assert Results.digest_of_test(clone, test) != before


def test_a_table_counts_by_folder_and_in_all() -> None:
    verdicts = {
        FAULT: CAUGHT,
        replace(FAULT, name="b", file="v2/a.py"): CAUGHT,
        replace(FAULT, name="c", file="v2/b.py"): SURVIVES,
        replace(FAULT, name="d", file="v2/b.py"): SAME,
        replace(FAULT, name="e", file="v2/b.py"): BROKEN,
        replace(FAULT, name="f", file="v2/b.py", room="ops"): CAUGHT,
    }
    assert table_of(verdicts).splitlines()[2:] == [
        "| mkv_ascend/adapters | 1 | 0 | 0 | 0 | 0 | 100.0% |",
        "| v2 | 1 | 1 | 1 | 0 | 1 | 50.0% |",
        "| mkv_ascend/ops | 1 | 0 | 0 | 0 | 0 | 100.0% |",
        "| all | 3 | 1 | 1 | 0 | 1 | 75.0% |",
    ]


class Bench:
    """Judges by what is told to it, and notes what it was asked."""

    def __init__(self, place: Path, forked: int, imported: int, errors: str = "") -> None:
        self.place, self.asked = place, []
        self._forked = {"status": forked, "errors": errors, "seconds": 0}
        self._imported = imported

    def log(self, name: str) -> Path:
        return self.place / "none.log"

    def in_a_fork(self, *_: object) -> dict[str, object]:
        self.asked.append("fork")
        return self._forked

    def in_a_new_process(self, _: Fault) -> int:
        self.asked.append("new process")
        return self._imported


@pytest.mark.parametrize(
    ("bench", "text", "asked", "outcome"),
    [
        ((1, 0), FAULT.text, ["fork"], CAUGHT),
        ((0, 1), FAULT.text, ["fork", "new process"], CAUGHT),
        ((0, 0), FAULT.text, ["fork", "new process"], SURVIVES),
        ((1, 0, "not exchanged"), FAULT.text, ["fork", "new process"], SURVIVES),
        ((0, 1), "BOUND = 3", ["new process"], CAUGHT),
    ],
)
def test_what_survives_in_a_fork_meets_a_new_process(
    bench, text: str, asked: list[str], outcome: str, clone: Path
) -> None:
    judging = Bench(clone, *bench)
    fault = replace(FAULT, text=text, instead=text.replace("<", "<=").replace("3", "4"))
    assert planted_faults.judge(judging, fault)[0] == outcome
    assert judging.asked == asked


def test_tests_that_fail_by_themselves_judge_nothing(clone: Path) -> None:
    with pytest.raises(SystemExit, match=r"tests/test_bounds\.py fails without a fault"):
        planted_faults.tests_pass(Bench(clone, 1, 1), [FAULT], Results(clone / "results.json"))
    results = Results(clone / "results.json")
    passing = Bench(clone, 0, 0)
    for _ in range(2):
        planted_faults.tests_pass(passing, [FAULT], results)
    assert passing.asked == ["fork"]


def test_what_is_asked_for_is_a_name_or_the_end_of_a_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [
        planted_faults.chosen(FAULT, only)
        for only in ([], [FAULT.name], ["bounds.py"], ["other.py"], ["other", FAULT.name])
    ] == [True, True, True, False, True]
    with pytest.raises(SystemExit):
        planted_faults.main(["--only", "no such fault", "--report"])
    assert "no fault of host 0.23 is so named" in capsys.readouterr().err


def test_a_fault_that_does_not_fit_is_named_and_nothing_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = replace(planted_faults.FAULTS[0], text="this line is gone")
    monkeypatch.setattr(planted_faults, "FAULTS", (stale,))
    assert planted_faults.main([]) == 1
    assert "occurs 0 times" in capsys.readouterr().out
    with pytest.raises(OutOfDateError):
        stale.planted("")


def test_the_copy_comes_before_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "others")
    bench = planted_faults.Bench("0.23", tmp_path / "clone")
    folders = bench.environment(PLANTED_FAULT_FOLDER="x")["PYTHONPATH"].split(os.pathsep)
    assert folders == [str(tmp_path / "site"), str(tmp_path / "clone"), "others"]
    assert bench.environment()["PYTHONPATH"] == os.pathsep.join([str(tmp_path / "clone"), "others"])
