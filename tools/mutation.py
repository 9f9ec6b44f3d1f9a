# SPDX-License-Identifier: Apache-2.0
"""Change the Python of a room in small ways, one at a time, and see whether its tests notice.

    .venv/bin/python tools/mutation.py attention                go on where the last run stopped
    .venv/bin/python tools/mutation.py layout --only pooling.py retention.py
    .venv/bin/python tools/mutation.py layout --tenth 3         a sample: one of ten
    .venv/bin/python tools/mutation.py attention --report       only say what is known
    .venv/bin/python tools/mutation.py --json figures.json      all rooms, figures for a page

mutmut makes the mutants and runs those unit tests of the room that call what is changed. What
survives meets all tests of the room. Results are kept in .cache/mutation: a run that is stopped
goes on, and a function that has changed is judged anew. When tests have changed, everything that
they had not caught is judged anew as well.

A mutant that changes only the wording of a message is counted apart: tests look for the part of a
message that tells users what to do, not for all of it. Mutants that do the same as the original
are listed in mutation_equivalents.py, with the reason.

The exit status is 1 if a mutant survives that is neither.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mutation_results import (
    CHANGE,
    SURVIVES,
    UNCALLED,
    Figures,
    Mutant,
    Room,
    figures_of,
    mutants_of,
    table_of,
)
from mutation_workplace import (
    forget_what_tests_may_catch_now,
    has_met_all_tests,
    make_workplace,
    note_all_tests,
)

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "mutation"
ROOMS = {
    name: Room(name, f"mkv_ascend/{name}", f"tests/unit/{name}")
    for name in ("attention", "checks", "drafting", "layout", "metrics", "ops")
}
PROGRAM = Path(__file__).with_name("mutation_runs.py")
MISSING = "mutmut is not installed here: `make setup` installs it"


@dataclass(frozen=True)
class Wanted:
    """Which mutants of a room.

    ``only``: of these files. ``endings``: whose names end so; none: all.
    """

    only: Sequence[str] = ()
    endings: tuple[str, ...] = ()

    def of(self, room: Room, folder: Path) -> list[Mutant]:
        """Those that mutmut has made in ``folder``."""
        every = mutants_of(ROOT, folder, room, self.only)
        return [one for one in every if one.name.endswith(self.endings or "")]


def run(room: Room, folder: Path, wanted: Wanted, jobs: int, seconds: float | None) -> bool:
    """Judge what is not judged yet; False if the time is over before.

    Raises:
        SystemExit: mutmut could not begin, for instance as a test fails without a mutant.
    """
    end = math.inf if seconds is None else time.monotonic() + seconds
    make_workplace(ROOT, folder, room, wanted.only)
    forget_what_tests_may_catch_now(ROOT, folder, room)
    arguments = [str(PROGRAM), *wanted.endings, "--", "run", "--max-children", str(jobs)]
    status = run_program(folder, folder, arguments, end)
    if status:
        sys.exit(f"mutmut ended with {status} on {room.name}: see above")
    return status == 0 and meets_all_tests(room, folder, wanted, end)


def meets_all_tests(room: Room, folder: Path, wanted: Wanted, end: float) -> bool:
    """Let what survives meet all tests of the room, alone; False if the time is over before.

    mutmut runs the tests that it has seen calling a function. Of one that is called while its
    module is imported, or whose results are kept, it has seen the first caller alone.
    """
    options = ["-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider", room.tests]
    left = [
        mutant.name
        for mutant in wanted.of(room, folder)
        if mutant.kind == CHANGE
        and mutant.outcome in (SURVIVES, UNCALLED)
        and not has_met_all_tests(folder, mutant.name)
    ]
    # First none, with which all tests must pass.
    for name in ("", *left) if left else ():
        variables = {"MUTANT_UNDER_TEST": name}
        status = run_program(folder, folder / "mutants", options, end, variables)
        if status is None:
            return False
        if name:
            note_all_tests(folder, room, name, status)
        elif status:
            sys.exit(
                f"{room.tests} fails without a mutant, with {status}: run it in {folder}/mutants"
            )
    return True


def run_program(
    folder: Path, place: Path, arguments: Sequence[str], end: float, variables: Any = None
) -> int | None:
    """Exit status of Python with these arguments in ``place``; None if the time is over before."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **(variables or {})}
    # Each fork imports tests anew. Compiled, they name files of the workplace: not for others.
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    output = subprocess.DEVNULL if variables else None
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=place,
        env=environment,
        start_new_session=True,
        stdout=output,
        stderr=output,
    ) as process:
        try:
            return process.wait(None if end == math.inf else max(end - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.poll() is None:
                # All of it: workers are processes of their own.
                os.killpg(process.pid, signal.SIGKILL)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("rooms", nargs="*", metavar="room", help=", ".join(ROOMS))
    parser.add_argument("--only", nargs="+", default=[], metavar="FILE", help="files of the room")
    parser.add_argument(
        "--tenth",
        nargs="+",
        default=[],
        choices=[*"0123456789"],
        metavar="DIGIT",
        help="only mutants whose numbers end so: a sample of all functions",
    )
    parser.add_argument("--report", action="store_true", help="run nothing")
    parser.add_argument("--diffs", action="store_true", help="show what survives")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="tests at once")
    parser.add_argument("--seconds", type=float, metavar="N", help="stop each room after these")
    given = parser.parse_args(arguments)
    if unknown := [name for name in given.rooms if name not in ROOMS]:
        parser.error(f"no room {' or '.join(unknown)}; there are {', '.join(ROOMS)}")
    if not given.report and importlib.util.find_spec("mutmut") is None:
        parser.error(MISSING)
    # Not at once, which would leave mutmut running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated; the next run goes on"))
    found: dict[str, Figures] = {}
    wanted = Wanted(given.only, tuple(given.tenth))
    for name in given.rooms or ROOMS:
        room, folder = ROOMS[name], CACHE / name
        if not given.report and not run(room, folder, wanted, given.jobs, given.seconds):
            print(f"{name}: stopped; the next run goes on", flush=True)
        found[name] = figures_of(wanted.of(room, folder))
    report(found, given.diffs)
    if given.json is not None:
        write_json(given.json, found)
    return 1 if any(figures.survivors for figures in found.values()) else 0


def report(found: Mapping[str, Figures], diffs: bool) -> None:
    """Print a row for each room, then what survives."""
    print(table_of(found))
    for figures in found.values():
        for mutant in figures.survivors:
            print(f"{mutant.name}: {mutant.outcome}")
            if diffs:
                print(mutant.diff)


def write_json(path: Path, found: Mapping[str, Figures]) -> None:
    """Figures by room, with the names of what survives."""
    rooms = {name: figures.to_dict() for name, figures in found.items()}
    path.write_text(json.dumps(rooms, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
