# SPDX-License-Identifier: Apache-2.0
"""What mutmut has found out about one room, sorted and counted."""

from __future__ import annotations

import ast
import difflib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation_equivalents import reason_of

CAUGHT, SURVIVES, UNCALLED, UNKNOWN = "caught", "survives", "no test calls it", "not judged yet"
OUTCOMES: dict[int | None, str] = {None: UNKNOWN, 0: SURVIVES, 5: UNCALLED, 33: UNCALLED}
"""mutmut's exit code of a mutant; every other one is a failing test, a hang or a crash."""

CHANGE, WORDING, SAME = "change", "wording", "same"
"""What a mutant is: a change of what happens, of a message, or one that does the same."""


@dataclass(frozen=True)
class Room:
    """A package, and the unit tests that ought to notice its mutants; paths in the clone."""

    name: str
    sources: str
    tests: str


@dataclass(frozen=True)
class Mutant:
    """One change, and what became of it. ``diff``: the lines that differ."""

    name: str
    kind: str
    outcome: str
    diff: str


def outcome_of(exit_code: int | None) -> str:
    """What mutmut's exit code of a mutant says. An interrupted one is not judged."""
    return UNKNOWN if exit_code == 2 else OUTCOMES.get(exit_code, CAUGHT)


def mutants_of(root: Path, folder: Path, room: Room, only: Sequence[str] = ()) -> Iterator[Mutant]:
    """All mutants of the room that mutmut has made in ``folder``."""
    for path in sorted((root / room.sources).rglob("*.py")):
        if only and path.name not in only:
            continue
        mutated = folder / "mutants" / path.relative_to(root)
        meta = mutated.with_name(mutated.name + ".meta")
        if not meta.is_file():
            continue
        codes = json.loads(meta.read_text("utf-8"))["exit_code_by_key"]
        if not codes:
            continue
        functions = _functions_of(ast.parse(mutated.read_text("utf-8")))
        for name, code in codes.items():
            own = name.rpartition(".")[2]
            original = functions[own.rpartition("__mutmut_")[0] + "__mutmut_orig"]
            yield _mutant(name, original, functions[own], outcome_of(code))


def _functions_of(tree: ast.AST) -> dict[str, ast.AST]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name: node for node in ast.walk(tree) if isinstance(node, kinds)}


def _mutant(name: str, original: ast.AST, changed: ast.AST, outcome: str) -> Mutant:
    before, after = (_lines_of(node) for node in (original, changed))
    lines = difflib.unified_diff(before, after, n=0, lineterm="")
    # Without the names of the files and of the function, which differ always.
    diff = "\n".join(line for line in lines if line[0] in "+-" and line[:3] not in ("+++", "---"))
    kind = CHANGE
    if reason_of(_short(name), diff) is not None:
        kind = SAME
    elif _without_wording(before) == _without_wording(after):
        kind = WORDING
    return Mutant(name, kind, outcome, diff)


def _short(name: str) -> str:
    """Module and function, without mutmut's number, which changes with every edit."""
    return name.rpartition("__mutmut_")[0].removeprefix("mkv_ascend.")


def _lines_of(function: ast.AST) -> list[str]:
    """The function's own code under a name that all its mutants share."""
    named: Any = ast.parse(ast.unparse(function)).body[0]
    named.name = "function"
    return ast.unparse(named).splitlines()


def _without_wording(lines: Sequence[str]) -> str:
    return ast.dump(_Unworded().visit(ast.parse("\n".join(lines))))


class _Unworded(ast.NodeTransformer):
    """Empties what only people read: sentences, parts of them, and arguments of exceptions."""

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        is_sentence = isinstance(node.value, str) and " " in node.value.strip("X")
        return ast.Constant("") if is_sentence else node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        values = [part for part in node.values if not isinstance(part, ast.Constant)]
        for inner in (inner for part in values for inner in ast.walk(part)):
            if isinstance(inner, ast.Constant) and isinstance(inner.value, str):
                inner.value = ""
        return ast.JoinedStr(values)

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        if isinstance(node.exc, ast.Call):
            return ast.Raise(ast.Call(node.exc.func, [], []), None)
        return node


@dataclass(frozen=True)
class Figures:
    """How the mutants of a room ended.

    ``changes``, ``wordings``: numbers by outcome. ``same``: how many do the same as the original.
    ``survivors``: the changes that no test has caught.
    """

    changes: Mapping[str, int]
    wordings: Mapping[str, int]
    same: int
    survivors: tuple[Mutant, ...]

    @property
    def judged(self) -> int:
        """Number of changes that are judged."""
        return _judged(self.changes)

    @property
    def caught(self) -> float:
        """The share of the judged changes that tests have caught."""
        return self.changes.get(CAUGHT, 0) / self.judged if self.judged else 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "changes": dict(self.changes),
            "wordings": dict(self.wordings),
            "same": self.same,
            "survivors": [{"name": one.name, "diff": one.diff} for one in self.survivors],
        }


def _judged(outcomes: Mapping[str, int]) -> int:
    return sum(outcomes.values()) - outcomes.get(UNKNOWN, 0)


def figures_of(mutants: Iterable[Mutant]) -> Figures:
    """Count the mutants of a room."""
    every = list(mutants)
    changes = [one for one in every if one.kind == CHANGE]
    wordings = Counter(one.outcome for one in every if one.kind == WORDING)
    survivors = tuple(one for one in changes if one.outcome in (SURVIVES, UNCALLED))
    same = len(every) - len(changes) - sum(wordings.values())
    return Figures(Counter(one.outcome for one in changes), wordings, same, survivors)


def table_of(found: Mapping[str, Figures]) -> str:
    """A row for each room."""
    columns = (CAUGHT, SURVIVES, UNCALLED, UNKNOWN)
    titles = ("room", "share caught", *columns, "do the same", "wordings caught")
    rows = [titles, ("---", *["---:"] * (len(titles) - 1))]
    for name, figures in found.items():
        share = f"{figures.caught:.1%}" if figures.judged else ""
        counts = [str(figures.changes.get(column, 0)) for column in columns]
        wordings = f"{figures.wordings.get(CAUGHT, 0)} of {_judged(figures.wordings)}"
        rows.append((name, share, *counts, str(figures.same), wordings))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
