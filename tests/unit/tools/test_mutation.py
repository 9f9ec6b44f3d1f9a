# SPDX-License-Identifier: Apache-2.0
"""How mutants of our Python are sorted and counted. None is made or run here."""

from __future__ import annotations

import ast
import json
import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mutation
import mutation_equivalents
import mutation_workplace
import pytest
from mutation_results import (
    CAUGHT,
    CHANGE,
    SAME,
    SURVIVES,
    UNCALLED,
    UNKNOWN,
    WORDING,
    Room,
    figures_of,
    mutants_of,
    outcome_of,
    table_of,
)

Patch, Put = pytest.MonkeyPatch, Callable[[str], None]
ROOM = Room("layout", "mkv_ascend/layout", "tests/unit/layout")
MUTATED = """
def x_least__mutmut_orig(values, label="least"):
    if not values:
        raise ValueError(f"no values for {label}", "give some")
    text = "the least one"
    return min(values)

def x_least__mutmut_1(values, label="least"):
    if values:
        raise ValueError(f"no values for {label}", "give some")
    text = "the least one"
    return min(values)

def x_least__mutmut_2(values, label="least"):
    if not values:
        raise ValueError(None, "give some")
    text = "the least one"
    return min(values)

def x_least__mutmut_3(values, label="least"):
    if not values:
        raise ValueError(f"no values for {label}", "give some")
    text = "XXthe least oneXX"
    return min(values)

def x_least__mutmut_4(values, label="XXleastXX"):
    if not values:
        raise ValueError(f"no values for {label}", "give some")
    text = "the least one"
    return min(values)

class Kept:
    def xǁKeptǁcount__mutmut_orig(self):
        return f"{self.one or 'none'} of them"

    def xǁKeptǁcount__mutmut_1(self):
        return f"{self.one or 'NONE'} of them"

    def xǁKeptǁcount__mutmut_2(self):
        return None
"""
CODES = {
    "x_least__mutmut_1": 1,
    "x_least__mutmut_2": 0,
    "x_least__mutmut_3": 1,
    "x_least__mutmut_4": 33,
    "xǁKeptǁcount__mutmut_1": 0,
    "xǁKeptǁcount__mutmut_2": None,
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A clone with one module of one room, and tests of it."""
    root = tmp_path / "clone"
    for name in ("mkv_ascend/layout/pooling.py", "tests/unit/layout/test_plan.py", "docs/index.md"):
        path = root / name
        path.parent.mkdir(parents=True)
        path.write_text("one = 1\n")
    (root / "pyproject.toml").write_text("[tool.pytest.ini_options]\nminversion = '8'\n")
    return root


@pytest.fixture
def folder(root: Path, tmp_path: Path) -> Path:
    """What mutmut has left of a run."""
    mutated = tmp_path / "work" / "mutants" / "mkv_ascend" / "layout" / "pooling.py"
    mutated.parent.mkdir(parents=True)
    mutated.write_text(MUTATED)
    codes = {f"mkv_ascend.layout.pooling.{name}": code for name, code in CODES.items()}
    meta = mutated.with_name("pooling.py.meta")
    meta.write_text(json.dumps({"exit_code_by_key": codes, "hash_by_function_name": {}}))
    return tmp_path / "work"


def test_changes_wordings_and_what_does_the_same_are_told_apart(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = "-def function(values, label='least'):\n+def function(values, label='XXleastXX'):"
    equivalent = {("layout.pooling.x_least", label): "why"}
    monkeypatch.setattr(mutation_equivalents, "EQUIVALENT", equivalent)
    found = list(mutants_of(root, folder, ROOM))
    assert [one.name.removeprefix("mkv_ascend.layout.pooling.") for one in found] == list(CODES)
    assert [(one.kind, one.outcome) for one in found] == [
        (CHANGE, CAUGHT),
        (WORDING, SURVIVES),
        (WORDING, CAUGHT),
        (SAME, UNCALLED),
        (WORDING, SURVIVES),
        (CHANGE, UNKNOWN),
    ]
    assert found[0].diff == "-    if not values:\n+    if values:"
    assert list(mutants_of(root, folder, ROOM, ["other.py"])) == []


def test_a_hang_and_a_crash_are_noticed_and_an_interruption_is_not_judged() -> None:
    assert {code: outcome_of(code) for code in (0, 1, 2, 3, 5, -9, 24, 33, None)} == {
        0: SURVIVES,
        1: CAUGHT,
        2: UNKNOWN,
        3: CAUGHT,
        5: UNCALLED,
        -9: CAUGHT,
        24: CAUGHT,
        33: UNCALLED,
        None: UNKNOWN,
    }


def test_figures_count_changes_alone(root: Path, folder: Path) -> None:
    figures = figures_of(mutants_of(root, folder, ROOM))
    assert (figures.judged, figures.caught) == (2, 0.5)
    assert [one.outcome for one in figures.survivors] == [UNCALLED]
    assert table_of({"layout": figures}).splitlines()[2] == (
        "| layout | 50.0% | 1 | 0 | 1 | 1 | 0 | 1 of 3 |"
    )
    written = figures.to_dict()
    assert written["changes"] == {CAUGHT: 1, UNCALLED: 1, UNKNOWN: 1}
    assert [one["name"] for one in written["survivors"]] == [
        "mkv_ascend.layout.pooling.x_least__mutmut_4"
    ]
    assert table_of({"none": figures_of([])}).splitlines()[2] == (
        "| none |  | 0 | 0 | 0 | 0 | 0 | 0 of 0 |"
    )


def test_a_workplace_is_links_and_settings_of_one_room(root: Path, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    for only in ([], ["pooling.py"]):
        mutation_workplace.make_workplace(root, folder, ROOM, only)
    assert (folder / "mkv_ascend").resolve() == root / "mkv_ascend"
    links = {path.name: path.resolve() for path in (folder / "mutants").iterdir()}
    assert links == {name: root / name for name in ("docs", "tests")}
    settings = (folder / "pyproject.toml").read_text()
    assert settings.startswith("[tool.pytest.ini_options]")
    assert 'only_mutate = ["mkv_ascend/layout/pooling.py"]' in settings
    assert 'process_isolation = "forkserver"' in settings
    # Nothing of ours: what a mutant makes while its module is imported counts, too.
    assert f'preload_modules_file = "{folder / "preloaded.txt"}"' in settings
    assert "mkv_ascend" not in (folder / "preloaded.txt").read_text()


def test_what_was_not_caught_is_judged_anew_where_tests_have_changed(
    root: Path, folder: Path
) -> None:
    meta = folder / "mutants" / "mkv_ascend" / "layout" / "pooling.py.meta"
    stats = folder / "mutants" / "mutmut-stats.json"

    def codes() -> list[int | None]:
        mutation_workplace.forget_what_tests_may_catch_now(root, folder, ROOM)
        return list(json.loads(meta.read_text())["exit_code_by_key"].values())

    assert codes() == [1, None, 1, None, None, None]
    written = {**json.loads(meta.read_text())}
    written["exit_code_by_key"] = dict(
        zip(written["exit_code_by_key"], [1, 0, 1, 33, 0, 0], strict=True)
    )
    meta.write_text(json.dumps(written))
    stats.touch()
    assert codes() == [1, 0, 1, 33, 0, 0]
    assert stats.exists()
    (root / "tests" / "unit" / "layout" / "test_plan.py").write_text("two = 2\n")
    assert codes() == [1, None, 1, None, None, None]
    assert not stats.exists()


FAKES = {
    "__init__.py": "",
    "runners/harness.py": "class PytestRunner:\n    def warm_up(self):\n        self.warm = True\n",
    "state.py": "class state:\n    duration_by_test = {'a': 3, 'b': 1, 'c': 2}\n",
    "workers/isolation.py": "class ForkServerRunner:\n    def submit(self, *given):\n"
    "        self.given = given\n",
}


@pytest.fixture
def fake_mutmut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Put:
    """Puts a program in the place of mutmut."""
    package = tmp_path / "modules" / "mutmut"
    for name, text in FAKES.items():
        path = package / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))

    def put(program: str) -> None:
        (package / "__main__.py").write_text(program)

    return put


@pytest.mark.parametrize(("does", "ended"), [("time.sleep(60)", False), ("pass", True)])
def test_a_run_ends_in_time(
    does: str, ended: bool, root: Path, tmp_path: Path, fake_mutmut: Put, monkeypatch: Patch
) -> None:
    fake_mutmut(f"import time\n\ndef cli():\n    {does}\n")
    monkeypatch.setattr(mutation, "ROOT", root)
    begin = time.monotonic()
    assert (
        mutation.run(ROOM, tmp_path / "work", mutation.Wanted(), 1, None if ended else 0.5) == ended
    )
    assert time.monotonic() - begin < 30


@pytest.mark.parametrize(("status", "outcome"), [(0, UNCALLED), (1, CAUGHT), (None, UNCALLED)])
def test_what_survives_meets_all_tests_once(
    status: int | None,
    outcome: str,
    root: Path,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[str, str]] = []

    def run_program(_: Path, place: Path, arguments: list[str], end: float, variables: dict) -> Any:
        asked.append((variables["MUTANT_UNDER_TEST"], arguments[-1]))
        assert place == folder / "mutants"
        return status if variables["MUTANT_UNDER_TEST"] else 0

    monkeypatch.setattr(mutation, "ROOT", root)
    monkeypatch.setattr(mutation, "run_program", run_program)
    name = "mkv_ascend.layout.pooling.x_least__mutmut_4"
    for _ in range(2):
        ended = mutation.meets_all_tests(ROOM, folder, mutation.Wanted(), math.inf)
        assert ended == (status is not None)
    # One that time was not enough for is asked again; wordings are not asked for.
    assert asked == [("", ROOM.tests), (name, ROOM.tests)] * (1 if ended else 2)
    found = {one.name: one.outcome for one in mutants_of(root, folder, ROOM)}
    assert found[name] == outcome


FAKE = """
import gc
from pathlib import Path
from mutmut.runners.harness import PytestRunner
from mutmut.workers.isolation import ForkServerRunner

def collect_source_file_mutation_data(*, mutant_names):
    assert mutant_names == ()
    names = [f"mkv_ascend.layout.pooling.x_least__mutmut_{number}" for number in range(1, 30)]
    return [("data", name, None) for name in names], {}

def cli():
    runner = ForkServerRunner()
    runner.submit("mkv_ascend.layout.pooling.x_least__mutmut_1", {"a", "b", "c"}, 7)
    assert runner.given[1:] == (["b", "c", "a"], 7)
    tests = PytestRunner()
    tests.warm_up()
    assert tests.warm and gc.get_freeze_count()
    mutants, _ = collect_source_file_mutation_data(mutant_names=())
    Path("judged.txt").write_text(" ".join(name for _, name, _ in mutants))
"""


def test_mutmut_sees_a_sample_and_tests_in_order(
    root: Path, folder: Path, fake_mutmut: Put, monkeypatch: Patch
) -> None:
    fake_mutmut(FAKE)
    monkeypatch.setattr(mutation, "ROOT", root)
    wanted = mutation.Wanted(endings=("3", "7"))
    assert mutation.run(ROOM, folder, wanted, 1, None)
    judged = (folder / "judged.txt").read_text().split()
    assert [name.rpartition("_")[2] for name in judged] == ["3", "7", "13", "17", "23", "27"]
    assert [one.name.rpartition("_")[2] for one in wanted.of(ROOM, folder)] == ["3"]


def test_tests_that_fail_without_a_mutant_judge_none(
    root: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutation, "ROOT", root)
    monkeypatch.setattr(mutation, "run_program", lambda *_: 4)
    with pytest.raises(SystemExit, match="tests/unit/layout fails without a mutant, with 4"):
        mutation.meets_all_tests(ROOM, folder, mutation.Wanted(), math.inf)
    assert UNCALLED in {one.outcome for one in mutants_of(root, folder, ROOM)}


def test_a_run_that_cannot_begin_says_so(
    root: Path, tmp_path: Path, fake_mutmut: Put, monkeypatch: Patch
) -> None:
    fake_mutmut("def cli():\n    raise SystemExit(1)\n")
    monkeypatch.setattr(mutation, "ROOT", root)
    with pytest.raises(SystemExit, match="mutmut ended with 1 on layout"):
        mutation.run(ROOM, tmp_path / "work", mutation.Wanted(), 1, None)


def test_a_report_runs_nothing_and_fails_where_something_survives(
    root: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setattr(mutation, "ROOT", root)
    monkeypatch.setattr(mutation, "CACHE", tmp_path)
    os.rename(folder, tmp_path / "layout")
    figures = tmp_path / "figures.json"
    assert mutation.main(["layout", "--report", "--diffs", "--json", str(figures)]) == 1
    printed = capsys.readouterr().out
    assert "mkv_ascend.layout.pooling.x_least__mutmut_4: no test calls it" in printed
    assert "+def function(values, label='XXleastXX'):" in printed
    assert json.loads(figures.read_text())["layout"]["wordings"] == {SURVIVES: 2, CAUGHT: 1}
    assert mutation.main(["ops", "--report"]) == 0


def test_an_unknown_room_and_a_missing_mutmut_are_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        mutation.main(["kitchen"])
    assert "no room kitchen; there are attention" in capsys.readouterr().err
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SystemExit):
        mutation.main(["layout"])
    assert "make setup" in capsys.readouterr().err


def test_each_room_has_sources_and_tests() -> None:
    for room in mutation.ROOMS.values():
        assert (mutation.ROOT / room.sources / "__init__.py").is_file()
        assert any((mutation.ROOT / room.tests).glob("test_*.py"))


def lines_of(function: str) -> list[str]:
    """The lines of a function of the package as those of a diff are."""
    module, _, mangled = function.rpartition(".")
    path = mutation.ROOT / "mkv_ascend" / f"{module.replace('.', '/')}.py"
    name = mangled.rpartition("ǁ")[2].removeprefix("x_")
    (found,) = [
        node
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == name
    ]
    found.name = "function"
    return ast.unparse(found).splitlines()


@pytest.mark.parametrize(("function", "diff"), mutation_equivalents.EQUIVALENT)
def test_what_is_called_equivalent_is_still_there(function: str, diff: str) -> None:
    lines = lines_of(function)
    assert {line[1:] for line in diff.splitlines() if line[0] == "-"} <= set(lines)
    assert mutation_equivalents.reason_of(function, diff)


@pytest.mark.parametrize(("function", "looped"), mutation_equivalents.LENIENT_LOOPS)
def test_a_loop_that_need_not_be_strict_is_still_there(function: str, looped: str) -> None:
    """Without strict, and with a false one, it does the same; with another change it does not."""
    found = [line for line in lines_of(function) if f"{looped}, strict=True)" in line]
    assert found
    for line in found:
        for rest, same in (
            ("", True),
            (", strict=None", True),
            (", strict=False", True),
            (", 1", False),
        ):
            changed = line.replace(f"{looped}, strict=True)", f"{looped}{rest})")
            reason = mutation_equivalents.reason_of(function, f"-{line}\n+{changed}")
            assert (reason is not None) is same
            # Elsewhere it is a change.
            assert mutation_equivalents.reason_of("layout.a.x_b", f"-{line}\n+{changed}") is None
        assert mutation_equivalents.reason_of(function, f"-{line}\n+{line} or 1") is None
