# SPDX-License-Identifier: Apache-2.0
"""The folder in which mutmut works on one room, and what it may not keep from an earlier run.

mutmut takes its settings from the folder's pyproject.toml, mutates what lies beside it into a
folder ``mutants``, and runs the tests there. Here both are links into the clone, so nothing of the
clone is changed, and rooms can be run side by side.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from mutation_results import CAUGHT, Room, outcome_of

SETTINGS = """
[tool.mutmut]
source_paths = ["mkv_ascend"]
only_mutate = {files}
pytest_add_cli_args = ["-p", "no:cacheprovider"]
pytest_add_cli_args_test_selection = ["{tests}"]
# A fork of a process that has run the tests has the results of functions that remember them
# (functools.cache), and a fork of one that has imported our modules has what functions made while
# it did: a mutant of such a function would not be called. So nothing of ours is loaded before.
process_isolation = "forkserver"
forkserver_warmup = "import"
preload_modules_file = "{preloaded}"
use_git_change_detection = false
"""
PRELOADED = ("pytest", "hypothesis", "numpy", "torch")
"""Foreign modules that take long to import."""
MET_ALL = "met_all_tests.txt"
"""The file of a workplace with the names of mutants that have met all tests of the room."""
COPIED = ("mkv_ascend", "pyproject.toml", ".cache", ".git")
"""What is not linked beside the mutants."""


def make_workplace(root: Path, folder: Path, room: Room, only: Sequence[str]) -> None:
    """Write settings and links into ``folder``; results of an earlier run stay."""
    mutants = folder / "mutants"
    mutants.mkdir(parents=True, exist_ok=True)
    _link(folder / "mkv_ascend", root / "mkv_ascend")
    for path in root.iterdir():
        if path.name not in COPIED:
            _link(mutants / path.name, path)
    files = [f"{room.sources}/{name}" for name in only] or [f"{room.sources}/*"]
    preloaded = folder / "preloaded.txt"
    preloaded.write_text("\n".join(PRELOADED) + "\n", encoding="utf-8")
    settings = SETTINGS.format(files=json.dumps(files), tests=room.tests, preloaded=preloaded)
    ours = (root / "pyproject.toml").read_text("utf-8")
    (folder / "pyproject.toml").write_text(ours + settings, encoding="utf-8")


def _link(link: Path, target: Path) -> None:
    if not link.is_symlink():
        link.symlink_to(target)


def forget_what_tests_may_catch_now(root: Path, folder: Path, room: Room) -> None:
    """Where tests have changed, forget what was not caught and which test calls what."""
    mutants, kept = folder / "mutants", folder / "tests.sha256"
    now = _digest_of(root / room.tests)
    if kept.is_file() and kept.read_text("utf-8") == now:
        return
    (mutants / "mutmut-stats.json").unlink(missing_ok=True)
    (folder / MET_ALL).unlink(missing_ok=True)
    for path in (mutants / room.sources).glob("**/*.meta"):
        meta = json.loads(path.read_text("utf-8"))
        codes = meta["exit_code_by_key"]
        meta["exit_code_by_key"] = {
            name: code if outcome_of(code) == CAUGHT else None for name, code in codes.items()
        }
        path.write_text(json.dumps(meta, indent=4), encoding="utf-8")
    kept.write_text(now, encoding="utf-8")


def has_met_all_tests(folder: Path, mutant: str) -> bool:
    """Whether this mutant has survived all tests of the room."""
    kept = folder / MET_ALL
    return kept.is_file() and mutant in kept.read_text("utf-8").split()


def note_all_tests(folder: Path, room: Room, mutant: str, status: int) -> None:
    """Keep how all tests of the room ended on a mutant, by pytest's exit status."""
    if status == 0:
        with (folder / MET_ALL).open("a", encoding="utf-8") as kept:
            kept.write(f"{mutant}\n")
        return
    for path in (folder / "mutants" / room.sources).glob("**/*.meta"):
        meta = json.loads(path.read_text("utf-8"))
        if mutant in meta["exit_code_by_key"]:
            meta["exit_code_by_key"][mutant] = 1
            path.write_text(json.dumps(meta, indent=4), encoding="utf-8")


def _digest_of(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in _python_files(folder):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _python_files(folder: Path) -> Iterator[Path]:
    return iter(sorted(folder.rglob("*.py")))
