# SPDX-License-Identifier: Apache-2.0
"""Break the AscendC kernels in small ways, one at a time, and see whether the tests notice.

    .venv/bin/python tools/mutate_kernels.py                      every file of csrc/ascend
    .venv/bin/python tools/mutate_kernels.py draft_plan.cpp       one
    .venv/bin/python tools/mutate_kernels.py common.h --list
    .venv/bin/python tools/mutate_kernels.py --repeat 20          luck shown: see below

Each synchronisation is dropped, each buffer shrunk, each offset shifted, each length and stride of
a copy changed, in turn. Every mutant must be caught by the tests of a kernel that contains the
file: by the checker, or by a result. Those that do the same as the original are listed in
kernel_mutants.py, with the reason.

What a fixed example catches is caught in every run, so these are tried first, alone. Mutants that
they miss meet examples of hypothesis, with as many seeds as ``--repeat`` says; one that only some
of these runs catch is as wrong as one that none does: the tests need a fixed example for it.

All mutants of a file are compiled at once, each behind a switch, and a forked child runs the tests
for each of them.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from kernel_mutants import EQUIVALENT, Mutant, find_mutants, with_switches

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "csrc" / "ascend"
TESTS = ROOT / "tests" / "unit" / "ascend_kernels"
# Declarations only.
SKIPPED = {"launchers.h"}
# The variable by which the tests take kernels from another folder.
SOURCES = "MKV_KERNEL_TEST_SOURCES"
TIME_LIMIT = 120
PASSED = 0


def kernel_files() -> list[Path]:
    """The sources that hold kernels; the folder has bindings as well."""
    paths = sorted(KERNELS.glob("*.cpp"))
    return [path for path in paths if "__global__" in path.read_text("utf-8")]


def all_files() -> list[str]:
    """Kernels and the headers that they include."""
    return sorted(set().union(*(includes(path.name) for path in kernel_files())) - SKIPPED)


def includes(file: str) -> set[str]:
    """The file and what it includes of the folder."""
    found: set[str] = set()
    left = [file]
    while left:
        name = left.pop()
        if name in found or not (KERNELS / name).is_file():
            continue
        found.add(name)
        left += re.findall(r'#include "(\w+\.h)"', (KERNELS / name).read_text("utf-8"))
    return found


def kernels_of(file: str) -> list[str]:
    """The kernels that the file is part of."""
    return [path.stem for path in kernel_files() if file in includes(path.name)]


def tests_of(kernels: Sequence[str]) -> list[str]:
    """Test files that name one of the kernels."""
    paths = sorted(TESTS.glob("test_*.py"))
    return [str(path) for path in paths if any(name in path.read_text("utf-8") for name in kernels)]


def run_tests(kernels: Sequence[str], mutant: int, output: Path, seed: int | None) -> int:
    """In this process, with one mutant switched on (0: none); pytest's exit status.

    With ``seed`` None the fixed examples alone.
    """
    import ctypes

    import pytest
    from hypothesis import Phase, settings

    from tests.support.ops import batches
    from tests.unit.ascend_kernels import kernels as shared

    ctypes.c_int.in_dll(shared.library().handle, "mkv_mutant").value = mutant
    if seed is None:
        # Before pytest imports the tests, which take it from there.
        shared.examples = settings(shared.examples, phases=[Phase.explicit])
        batches.some = settings(batches.some, phases=[Phase.explicit])
    sys.stdout.flush()
    with output.open("w", encoding="utf-8") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    options = ["-x", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
    chosen = [f"--hypothesis-seed={seed or 0}", "-k", " or ".join(kernels), *tests_of(kernels)]
    return int(pytest.main([*options, *chosen]))


def in_child(kernels: Sequence[str], mutant: int, output: Path, seed: int | None = None) -> int:
    """Exit status of the tests in a forked child; a child that hangs or dies has not passed."""
    child = os.fork()
    if child == 0:
        os._exit(run_tests(kernels, mutant, output, seed))
    # Not by an alarm in the child: pytest's own time limit takes that over.
    deadline = time.monotonic() + TIME_LIMIT
    ended, status = os.waitpid(child, os.WNOHANG)
    while not ended and time.monotonic() < deadline:
        time.sleep(0.02)
        ended, status = os.waitpid(child, os.WNOHANG)
    if not ended:
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def telling_line(output: Path, status: int) -> str:
    """The line of pytest's output that says what was wrong."""
    if status < 0:
        return f"ended by {signal.Signals(-status).name}"
    lines = output.read_text("utf-8").splitlines()
    errors = [line for line in lines if line.startswith("E  ")]
    telling = [line for line in errors if ": core " in line]
    return (telling or errors or lines[-1:] or ["no output"])[0].removeprefix("E").strip()


def switched_copy(file: str, mutants: Sequence[Mutant], folder: Path) -> Path:
    """The kernels with all mutants of a file in them, each behind its number."""
    copy = folder / "ascend"
    shutil.copytree(KERNELS, copy)
    path = copy / file
    path.write_text(with_switches(path.read_text("utf-8"), mutants), encoding="utf-8")
    return copy


def prepare(sources: Path) -> None:
    """Import and compile what every child needs."""
    os.environ[SOURCES] = str(sources)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(sources / "examples")
    sys.path.insert(0, str(ROOT))
    from tests.unit.ascend_kernels.kernels import library

    library()


def judge(mutant: Mutant, kernels: Sequence[str], output: Path, repeat: int) -> tuple[bool, str]:
    """Whether the tests judge a mutant as expected, and their verdict."""
    status = in_child(kernels, mutant.switch, output)
    if status != PASSED:
        return True, f"caught: {telling_line(output, status)}"
    telling = ""
    caught = 0
    for seed in range(repeat):
        status = in_child(kernels, mutant.switch, output, seed)
        if status != PASSED:
            caught += 1
            telling = telling_line(output, status)
    if caught == repeat:
        return True, f"caught in {repeat} of {repeat} runs, by no fixed example: {telling}"
    if caught:
        return False, f"CAUGHT IN {caught} OF {repeat} RUNS ONLY: {telling}"
    reason = EQUIVALENT.get(mutant.name)
    return reason is not None, f"equivalent: {reason}" if reason else "SURVIVED"


def examine(file: str, mutants: Sequence[Mutant], repeat: int) -> int:
    """Try the mutants of a file and print each verdict; returns how many were not expected."""
    kernels = kernels_of(file)
    unexpected = 0
    with tempfile.TemporaryDirectory(prefix="mutants_") as name:
        folder = Path(name)
        output = folder / "output"
        prepare(switched_copy(file, mutants, folder))
        status = in_child(kernels, 0, output, 0)
        if status != PASSED:
            print(f"{file}: the tests fail without a mutant: {telling_line(output, status)}")
            return 1
        for mutant in mutants:
            started = time.monotonic()
            expected, verdict = judge(mutant, kernels, output, repeat)
            unexpected += not expected
            seconds = time.monotonic() - started
            print(f"{mutant.line}: {mutant.name} -> {mutant.change}", flush=True)
            print(f"    {verdict} ({seconds:.1f} s)", flush=True)
    return unexpected


def examine_in_child(file: str, mutants: Sequence[Mutant], repeat: int) -> bool:
    """`examine`, forked off: each file has libraries of its own. Whether all is as expected."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        unexpected = examine(file, mutants, repeat)
        print(f"{file}: {len(mutants)} mutants, {unexpected} unexpected", flush=True)
        os._exit(1 if unexpected else 0)
    _, status = os.waitpid(child, 0)
    return status == 0


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="file", help=f"of {', '.join(all_files())}")
    parser.add_argument("--list", action="store_true", help="list the mutants, try none")
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N",
        help="runs, each with another seed, of what no fixed example catches (default: 1)",
    )  # fmt: skip
    options = parser.parse_args(given)
    expected = True
    for file in options.files or all_files():
        mutants = find_mutants(file, (KERNELS / file).read_text("utf-8"))
        if options.list:
            print("\n".join(f"{one.line}: {one.name} -> {one.change}" for one in mutants))
        elif mutants:
            expected &= examine_in_child(file, mutants, options.repeat)
    return 0 if expected else 1


if __name__ == "__main__":
    sys.exit(main())
