# SPDX-License-Identifier: Apache-2.0
"""Run the checks of `make test`: print each command, then a summary with times.

    .venv/bin/python tools/checks.py             all of them
    .venv/bin/python tools/checks.py lint unit   the named ones

All are run even when one fails; the exit status is 1 if any did.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORKERS = "2"


@dataclass(frozen=True)
class Check:
    """A command of one group; ``make`` targets name groups."""

    group: str
    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Outcome:
    """How a check ended."""

    check: Check
    status: int
    seconds: float


def native_sources(root: Path) -> tuple[str, ...]:
    """C++ files, relative to the root, for clang-format."""
    files = (path for pattern in ("*.cpp", "*.h") for path in (root / "csrc").rglob(pattern))
    return tuple(sorted(str(path.relative_to(root)) for path in files))


def all_checks(root: Path, bin_folder: Path) -> list[Check]:
    """Every check, cheapest first."""

    def tool(name: str) -> str:
        return str(bin_folder / name)

    # A process takes whole files, whose tests share engines; in the order of tests/conftest.py.
    shared_out = ("-n", WORKERS, "--dist", "loadfile", "--no-loadscope-reorder")
    pytest = (tool("python"), "-m", "pytest", *shared_out)
    tiny_models = (tool("python"), "-m", "mkv_ascend.testing.tiny_models")
    # Strict, with its one named relaxation: the tests compare tokens with a float32 reference.
    emulate = (tool("mkv-ascend"), "emulate", "--strict", "--float32-compute", "--")
    checks = [
        Check("lint", "ruff check", (tool("ruff"), "check", ".")),
        Check("lint", "ruff format", (tool("ruff"), "format", "--check", ".")),
        Check("lint", "import-linter", (tool("lint-imports"),)),
        Check("types", "mypy", (tool("mypy"),)),
        Check("docs", "mkdocs", (tool("mkdocs"), "build", "--strict", "--quiet")),
        Check("unit", "unit tests", (*pytest, "tests/unit")),
        # Before the tests, which would wait for each other while one of them trains.
        Check("models", "tiny models", (*tiny_models, "--all", "--jobs", WORKERS)),
        Check("emulated", "emulated tests", (*emulate, *pytest, "--durations=8", "tests/emulated")),
    ]
    sources = native_sources(root)
    if sources:
        clang_format = (tool("clang-format"), "--dry-run", "--Werror", *sources)
        checks.insert(2, Check("lint", "clang-format", clang_format))
    return checks


def child_environment() -> dict[str, str]:
    """As given, but with one thread for each process unless asked otherwise."""
    environment = dict(os.environ)
    environment.setdefault("OMP_NUM_THREADS", "1")
    # The theme's notice about its successor is not about these pages.
    environment["NO_MKDOCS_2_WARNING"] = "1"
    return environment


def run(check: Check, root: Path) -> Outcome:
    """Run one check with its output on our own."""
    print(f"\n== {check.name}: {shlex.join(check.command)}", flush=True)
    started = time.monotonic()
    try:
        status = subprocess.run(check.command, cwd=root, env=child_environment()).returncode
    except OSError as error:
        print(f"cannot start {check.command[0]}: {error}; run `make setup`", flush=True)
        status = 127
    return Outcome(check, status, time.monotonic() - started)


def summary(outcomes: Sequence[Outcome]) -> str:
    """The closing table, and one line on the whole."""
    lines = ["", "== summary"]
    for outcome in outcomes:
        word = "ok" if outcome.status == 0 else f"FAILED (status {outcome.status})"
        lines.append(f"  {outcome.check.name:<16}{outcome.seconds:7.1f} s   {word}")
    failed = [outcome.check.name for outcome in outcomes if outcome.status != 0]
    total = sum(outcome.seconds for outcome in outcomes)
    verdict = f"failed: {', '.join(failed)}" if failed else "all passed"
    lines.append(f"{len(outcomes)} checks in {total:.0f} s, {verdict}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    checks = all_checks(ROOT, ROOT / ".venv" / "bin")
    groups = list(dict.fromkeys(check.group for check in checks))
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("groups", nargs="*", metavar="group", help=f"of {', '.join(groups)}")
    wanted = parser.parse_args(arguments).groups
    unknown = [name for name in wanted if name not in groups]
    if unknown:
        parser.error(f"no group {unknown[0]!r}; there are {', '.join(groups)}")
    outcomes = [run(check, ROOT) for check in checks if not wanted or check.group in wanted]
    print(summary(outcomes), flush=True)
    return 1 if any(outcome.status for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
