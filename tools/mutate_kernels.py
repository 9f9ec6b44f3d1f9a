# SPDX-License-Identifier: Apache-2.0
"""Break the AscendC kernels in small ways, one at a time, and see whether the tests notice.

    .venv/bin/python tools/mutate_kernels.py                      every file of csrc/ascend
    .venv/bin/python tools/mutate_kernels.py draft_plan.cpp       one
    .venv/bin/python tools/mutate_kernels.py common.h --list

Each synchronisation is dropped, each buffer shrunk, each offset shifted, each length and stride of
a copy changed, in turn. Every mutant must be caught by the tests of the kernels that contain the
file: by the checker, or by a result. Those that do the same as the original are listed below. A
mutant takes some seconds.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KERNELS = ROOT / "csrc" / "ascend"
TESTS = ROOT / "tests" / "unit" / "ascend_kernels"
# Declarations only.
SKIPPED = {"launchers.h"}
# Names that are plain arrays, not tensors.
ARRAYS = {"components"}
# The variable by which the tests take kernels from another folder.
SOURCES = "MKV_KERNEL_TEST_SOURCES"
TIME_LIMIT = 180

# Mutants that do what the original does, and why: `file: kind: code`, for a dropped line with the
# one before it; if such code occurs several times in the file, `#N` behind it for the N-th.
EQUIVALENT: dict[str, str] = {}


@dataclass(frozen=True)
class Mutant:
    """One change of one file: characters ``begin`` to ``end`` become ``after``."""

    file: str
    kind: str
    begin: int
    end: int
    before: str
    after: str
    line: int
    number: int  # among the mutants of the file with this kind and code, from 1

    @property
    def name(self) -> str:
        code = " ".join(self.before.split())
        return f"{self.file}: {self.kind}: {code}" + (f" #{self.number}" if self.number > 1 else "")

    def apply(self, text: str) -> str:
        return text[: self.begin] + self.after + text[self.end :]


@dataclass(frozen=True)
class Change:
    """A mutant before it is numbered."""

    kind: str
    begin: int
    end: int
    after: str


def closing(text: str, opening: int) -> int:
    """Index of the bracket that closes the one at ``opening``."""
    pairs = {"(": ")", "[": "]", "{": "}"}
    depth = 0
    for index in range(opening, len(text)):
        if text[index] in pairs:
            depth += 1
        elif text[index] in pairs.values():
            depth -= 1
            if depth == 0:
                return index
    raise ValueError(f"No bracket closes the one at character {opening}.")


def arguments(text: str, opening: int) -> list[tuple[int, int]]:
    """Begin and end of each argument in the brackets at ``opening``."""
    end = closing(text, opening)
    borders, depth = [opening], 0
    for index in range(opening + 1, end):
        if text[index] in "([{":
            depth += 1
        elif text[index] in ")]}":
            depth -= 1
        elif text[index] == "," and depth == 0:
            borders.append(index)
    borders.append(end)
    return [(a + 1, b) for a, b in pairwise(borders)]


def dropped_synchronisation(text: str) -> Iterator[Change]:
    """Barriers and flags, EnQue with its DeQue, FreeTensor."""
    statement = r"^[ ]*(?:PipeBarrier|Sync|SetFlag|WaitFlag)<[^;]*;"
    for match in re.finditer(statement, text, re.MULTILINE):
        yield Change("drop", match.start(), match.end(), "")
    pair = r"^[ ]*\w+\.EnQue\(\w+\);\n[ ]*\w+ = \w+\.(?:template )?DeQue<\w+>\(\);"
    for match in re.finditer(pair, text, re.MULTILINE):
        yield Change("drop", match.start(), match.end(), "")
    for match in re.finditer(r"^[ ]*\w+\.FreeTensor\(\w+\);", text, re.MULTILINE):
        yield Change("drop", match.start(), match.end(), "")


def shrunk_buffers(text: str) -> Iterator[Change]:
    """32 bytes less in each buffer, and one buffer less in each queue of several."""
    for match in re.finditer(r"\bInitBuffer\(", text):
        given = arguments(text, match.end() - 1)
        if len(given) < 2:
            continue
        begin, end = given[-1]
        yield Change("shrink", begin, end, f" ({text[begin:end].strip()}) - 32")
        if len(given) == 3 and text[given[1][0] : given[1][1]].strip() != "1":
            begin, end = given[1]
            yield Change("shrink", begin, end, f" ({text[begin:end].strip()}) - 1")


def shifted_offsets(text: str) -> Iterator[Change]:
    """Offsets of tensors by 8 elements in UB, by 1 in global memory; indices of scalars by 1."""
    declared = re.findall(r"GlobalTensor<\w+>&? (\w+(?:, \w+)*)(?=[;,)=( ])", text)
    declared += re.findall(r"\b(\w+) = GlobalAt<", text)
    distant = {name.strip() for names in declared for name in names.split(",")}
    for match in re.finditer(r"\b(\w+)\[", text):
        if match[1] in ARRAYS:
            continue
        end = closing(text, match.end() - 1)
        inside = text[match.end() : end]
        step = 1 if match[1] in distant else 8
        yield Change("shift", match.end(), end, f"({inside}) + {step}")
    for match in re.finditer(r"\b[GS]etValue\(", text):
        begin, end = arguments(text, match.end() - 1)[0]
        yield Change("shift", begin, end, f"({text[begin:end]}) + 1")


def shifted_strides(text: str) -> Iterator[Change]:
    """One more in each length and stride of a copy."""
    for match in re.finditer(r"\bDataCopyExtParams\{", text):
        for begin, end in arguments(text, match.end() - 1)[:4]:
            cast = re.fullmatch(r"\s*static_cast<\w+>\((.*)\)\s*", text[begin:end], re.DOTALL)
            if cast:
                inner = begin + text[begin:end].index(cast[1])
                yield Change("stride", inner, inner + len(cast[1]), f"({cast[1]}) + 4")


def mutants(file: str, text: str) -> list[Mutant]:
    """All mutants of a source, in its order."""
    code = re.sub(r"//[^\n]*", lambda match: " " * len(match[0]), text)
    found = [
        change
        for make in (dropped_synchronisation, shrunk_buffers, shifted_offsets, shifted_strides)
        for change in make(code)
    ]
    seen: dict[tuple[str, str], int] = {}
    numbered = []
    for change in sorted(found, key=lambda change: (change.begin, change.end)):
        begin = code.rindex("\n", 0, change.begin) + 1
        end = code.index("\n", change.end)
        if change.kind == "drop":
            begin = code.rindex("\n", 0, len(code[:begin].rstrip())) + 1
        before = " ".join(code[begin:end].split())
        key = (change.kind, before)
        seen[key] = seen.get(key, 0) + 1
        numbered.append(
            Mutant(
                file=file,
                kind=change.kind,
                begin=change.begin,
                end=change.end,
                before=before,
                after=change.after,
                line=text.count("\n", 0, change.begin) + 1,
                number=seen[key],
            )
        )
    return numbered


def includes(file: str) -> set[str]:
    """The file and what it includes of the folder."""
    found, left = set(), [file]
    while left:
        name = left.pop()
        if name in found or not (KERNELS / name).is_file():
            continue
        found.add(name)
        left += re.findall(r'#include "(\w+\.h)"', (KERNELS / name).read_text("utf-8"))
    return found


def kernels_of(file: str) -> list[str]:
    """The kernels that the file is part of."""
    return [path.stem for path in sorted(KERNELS.glob("*.cpp")) if file in includes(path.name)]


def test_command(kernels: Sequence[str]) -> list[str]:
    options = ["-x", "-q", "--no-header", "--tb=short", "-p", "no:cacheprovider"]
    chosen = ["--hypothesis-seed=0", "-k", " or ".join(kernels), str(TESTS)]
    return [sys.executable, "-m", "pytest", *options, *chosen]


def run_tests(kernels: Sequence[str], folder: Path) -> tuple[bool, str]:
    """Whether the kernels' tests notice, and how: the first line that tells."""
    environment = dict(os.environ)
    environment[SOURCES] = str(folder)
    environment["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "examples")
    environment["PYTHONPATH"] = str(ROOT)
    try:
        done = subprocess.run(
            test_command(kernels), cwd=ROOT, env=environment, capture_output=True, text=True,
            timeout=TIME_LIMIT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return True, f"ran longer than {TIME_LIMIT} s"
    if done.returncode == 0:
        return False, ""
    errors = [line for line in done.stdout.splitlines() if line.startswith("E  ")]
    telling = [line for line in errors if ": core " in line or "BuildFailed" in line]
    lines = telling or errors or done.stdout.splitlines()[-1:] or [done.stderr[-200:]]
    return True, lines[0].removeprefix("E").strip()


def try_mutant(mutant: Mutant) -> tuple[bool, str]:
    with tempfile.TemporaryDirectory(prefix="mutant_") as name:
        folder = Path(name) / "ascend"
        shutil.copytree(KERNELS, folder)
        path = folder / mutant.file
        path.write_text(mutant.apply(path.read_text(encoding="utf-8")), encoding="utf-8")
        return run_tests(kernels_of(mutant.file), folder)


def all_files() -> list[str]:
    paths = [*KERNELS.glob("*.cpp"), *KERNELS.glob("*.h")]
    return sorted(path.name for path in paths if path.name not in SKIPPED)


def examine(wanted: Sequence[Mutant]) -> list[Mutant]:
    """Try the mutants, print what becomes of each, and give back those that nobody expected."""
    survivors = []
    for count, mutant in enumerate(wanted, 1):
        started = time.monotonic()
        caught, how = try_mutant(mutant)
        reason = EQUIVALENT.get(mutant.name)
        if caught:
            verdict = f"caught: {how}"
        elif reason:
            verdict = f"equivalent: {reason}"
        else:
            verdict = "SURVIVED"
            survivors.append(mutant)
        seconds = time.monotonic() - started
        place = f"{mutant.file}:{mutant.line}"
        print(f"{count}/{len(wanted)} {place} {mutant.kind} `{mutant.before}`", flush=True)
        print(f"    {verdict} ({seconds:.1f} s)", flush=True)
    return survivors


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="file", help=f"of {', '.join(all_files())}")
    parser.add_argument("--list", action="store_true", help="list the mutants, try none")
    parser.add_argument("--part", default="1/1", help="K/N: every N-th mutant from the K-th on")
    options = parser.parse_args(given)
    part, parts = (int(number) for number in options.part.split("/"))
    survivors = []
    for file in options.files or all_files():
        wanted = mutants(file, (KERNELS / file).read_text("utf-8"))[part - 1 :: parts]
        if options.list:
            print("\n".join(f"{one.line}: {one.name} -> {one.after.strip()}" for one in wanted))
            continue
        caught, how = run_tests(kernels_of(file), KERNELS)
        if caught:
            print(f"{file}: the tests fail without any change: {how}")
            return 1
        survivors += examine(wanted)
    if survivors:
        print(f"\n{len(survivors)} mutants survived that are not known as equivalent:")
        print("\n".join(f"    {one.name} -> {one.after.strip()}" for one in survivors))
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
