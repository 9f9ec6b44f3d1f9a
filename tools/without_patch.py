# SPDX-License-Identifier: Apache-2.0
"""Run the tests of records without what each replaces, and see them fail.

    .venv-0.30/bin/python tools/without_patch.py "caches from a plan" "window bound"
    .venv-0.30/bin/python tools/without_patch.py --all --record
    .venv-0.30/bin/python tools/without_patch.py "caches from a plan::_reshape" "window bound=TEST"

A name may be followed by ``::`` and a part of it (a method) as verdicts name them, or a target of
the record, and by ``=`` and another test than the record's, or words for pytest. ``--each`` leaves
out one target of a record after the other, until one of its tests fails; ``--record`` keeps which
test that was in docs/without_patch.json, and that test is the first one the next time.

What ``@patch``, ``@override``, ``derive`` and ``Record.replaced`` put in place for the record is
left out in every process, and so is what the functions of ``without_patch_stubs.py`` do. A failure
means something only if the test passes with the patch. What pytest prints is in
``.cache/without_patch``, a file for each record.

Exit status: 1 if a test passed without its patch, or nothing was left out; else 0.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

import foreign_names
from patch_pages import SHOWN, shown
from pytest_forks import PYTEST, become_pytest, import_what_tests_import
from without_patch_stubs import PARTS, STUBS

if TYPE_CHECKING:
    from foreign_names import Placed
    from mkv_ascend.adapters.patching import Record

ROOT = Path(__file__).resolve().parent.parent
SITE = Path(__file__).resolve().parent / "without_patch_site"
LOGS = ROOT / ".cache" / "without_patch"
FOLDER = "WITHOUT_PATCH_FOLDER"


@dataclass(frozen=True)
class Trial:
    """What to leave out, and the tests of which one should fail.

    Attributes:
        record: its name.
        target: of the record; empty: what ``parts`` names, or all of it.
        parts: parts of verdicts' texts, with ``|`` between them.
        tests: words for pytest each.
    """

    record: str
    target: str
    parts: str
    tests: tuple[str, ...]

    @property
    def label(self) -> str:
        """The record, and what of it."""
        what = self.target or self.parts
        return f"{self.record}::{what}" if what else self.record


def parts_of(record: Record, target: str) -> str:
    """What verdicts' texts name this target by; empty if it is all of the record."""
    stubbed = any(target in targets for targets in STUBS.get(record.name, {}).values())
    if len(record.targets) == 1 or stubbed:
        return f"{target} " if stubbed else ""  # no other target that begins so
    if target in PARTS:
        return PARTS[target]
    qualified = target.rpartition(":")[2]
    owner, _, name = qualified.rpartition(".")
    shared = [other.rpartition(".")[2] for other in record.targets].count(name) > 1
    method = qualified if shared else f".{name}"
    return f"{target}|{method}" if owner else target


def keep(trial: Trial, test: str) -> None:
    """Write down that this test fails without what the trial leaves out; empty: none does."""
    found = shown()
    of_record = found.setdefault(hosts_version(), {}).setdefault(trial.record, {})
    of_record.pop(trial.target, None)
    if test:
        of_record[trial.target] = test
    text = json.dumps(found, indent=2, sort_keys=True)
    SHOWN.write_text(f"{text}\n", encoding="utf-8")


def hosts_version() -> str:
    """The installed vllm-ascend."""
    return metadata.version("vllm-ascend")


def trials_of(placed: Placed) -> list[Trial]:
    """One trial for each target; the test that noticed it before comes first."""
    record = placed.record
    before = shown().get(hosts_version(), {}).get(record.name, {})
    made = []
    for target in record.targets:
        seen = [shlex.quote(before[target])] if target in before else []
        tests = dict.fromkeys([*seen, *placed.notes.tests])
        made.append(Trial(record.name, target, parts_of(record, target), tuple(tests)))
    return made


def known_records() -> dict[str, Placed]:
    """Name of each record of the installed host -> the record and its file."""
    from mkv_ascend.adapters import installed as installed_host

    files = foreign_names.sources(foreign_names.name_of(installed_host.adapter()))
    return {placed.record.name: placed for placed in foreign_names.records(files)}


def start(asked: Sequence[str]) -> int:
    """Run this program again on the emulated NPU, with the module that leaves records out."""
    with tempfile.TemporaryDirectory() as folder:
        stubs = {
            name: {k: " ".join([k, *v, ""]) for k, v in of.items()} for name, of in STUBS.items()
        }
        Path(folder, "stubs.json").write_text(json.dumps(stubs), encoding="utf-8")
        for file in ("name", "before"):
            Path(folder, file).write_text("", encoding="utf-8")
        path = os.pathsep.join([str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])])
        emulate = (str(Path(sys.executable).with_name("mkv-ascend")), "emulate")
        return subprocess.run(
            [*emulate, "--strict", "--float32-compute", "--", sys.executable, __file__, *asked],
            env={**os.environ, "PYTHONPATH": path, FOLDER: folder},
            cwd=ROOT,
        ).returncode


def run_all(trials: Sequence[Trial], folder: Path, both: bool, record: bool) -> int:
    """Fork for each trial: all that the tests import is imported once."""
    import_what_tests_import()
    LOGS.mkdir(parents=True, exist_ok=True)
    worst = 0
    for trial in trials:
        noticed = next(filter(None, (_failing(trial, t, folder, both) for t in trial.tests)), "")
        worst |= not noticed
        if record and trial.target:
            keep(trial, noticed)
    return worst


def _pytest(left_out: str, test: str, folder: Path, log: Path) -> int:
    """pytest's exit status in a process that leaves this record out."""
    (folder / "name").write_text(left_out, encoding="utf-8")
    if left_out and _was_done_before(left_out, folder):
        # A fork would have what this process did when it imported its modules.
        with log.open("wb") as output:
            words = [sys.executable, "-m", "pytest", *PYTEST, *shlex.split(test)]
            return subprocess.run(words, cwd=ROOT, stdout=output, stderr=output).returncode
    child = os.fork()
    if child == 0:
        become_pytest(shlex.split(test), log)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def _was_done_before(left_out: str, folder: Path) -> bool:
    """Whether processes that leave nothing out did what is left out now, when they were asked."""
    record, _, parts = left_out.partition("::")
    for line in (folder / "before").read_text(encoding="utf-8").splitlines():
        name, _, what = line.partition("::")
        if name == record and any(part in what for part in parts.split("|")):
            return True
    return False


def _failing(trial: Trial, test: str, folder: Path, both: bool) -> str:
    """The first test that fails where something is left out; empty if none does."""
    log = LOGS / re.sub(r"\W+", "-", trial.label)[:200]
    if both and _pytest("", test, folder, log.with_suffix(".with.log")) != 0:
        print(f"FAILS WITH IT TOO            {trial.label!r}: {test}", flush=True)
        return ""
    seen, began = folder / "seen", time.monotonic()
    seen.write_text("", encoding="utf-8")
    left_out = f"{trial.record}::{trial.parts}" if trial.parts else trial.record
    status = _pytest(left_out, test, folder, log.with_suffix(".log"))
    noted = sorted(set(seen.read_text(encoding="utf-8").split("\n")) - {""})
    if not noted:
        verdict = f"NOTHING LEFT OUT (pytest: {status})"
    elif status == 1:
        verdict, test = "fails, as it should", _first_failure(log.with_suffix(".log"))
    else:
        verdict = "PASSES" if status == 0 else f"DID NOT RUN (pytest: {status})"
    seconds = time.monotonic() - began
    what = f"{trial.label!r} without {', '.join(noted)}: {test}"
    print(f"{verdict:<20} {seconds:4.0f} s  {what}", flush=True)
    return test if noted and status == 1 else ""


def _first_failure(log: Path) -> str:
    """The test that pytest's summary names first."""
    text = log.read_text(encoding="utf-8", errors="replace")
    found = re.search(r"^(?:FAILED|ERROR) (tests/.*?)(?: - .*)?$", text, re.MULTILINE)
    assert found is not None, f"{log} names no test that failed"
    return found[1]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see the description."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="name", help="of a record, or NAME=TEST")
    parser.add_argument("--all", action="store_true", help="each target of every record")
    parser.add_argument("--each", action="store_true", help="each target of the records apart")
    parser.add_argument("--both", action="store_true", help="run each test with its patch, too")
    parser.add_argument("--record", action="store_true", help="keep which test noticed a target")
    options = parser.parse_args(arguments)
    known = known_records()
    asked = [trial for one in known.values() if options.all for trial in trials_of(one)]
    for given in options.names:
        left_out, _, test = given.partition("=")
        name, _, part = left_out.partition("::")
        if name not in known:
            parser.error(f"no record of this host is named {name!r}; docs/patches.md lists them")
        tests = (test,) if test else ()
        of_targets = {trial.target: trial for trial in trials_of(known[name])}
        if part in of_targets or options.each:
            found = [of_targets[part]] if part else of_targets.values()
            asked += [replace(trial, tests=tests or trial.tests) for trial in found]
        else:
            asked.append(Trial(name, "", part, tests or known[name].notes.tests))
    if FOLDER not in os.environ:
        return start(sys.argv[1:] if arguments is None else arguments)
    return run_all(asked, Path(os.environ[FOLDER]), options.both, options.record)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
