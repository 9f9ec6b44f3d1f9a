# SPDX-License-Identifier: Apache-2.0
"""Run the checks of `make test`: print each command, then a summary with times.

    .venv/bin/python tools/checks.py                   those of `make test`
    .venv/bin/python tools/checks.py --all             those of `make test-all`
    .venv/bin/python tools/checks.py lint unit         the named ones
    .venv-0.30/bin/python tools/checks.py --host 0.30  on another host

All are run even when one fails; the exit status is 1 if any did. Checks of two lanes run side by
side, and each line of theirs then begins with its lane's name: the code is read, by one process,
beside the tests. What looks at sources alone needs no host, so it is run on the default one only.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hosts import DEFAULT, HOSTS, UnknownHostError, host_named

ROOT = Path(__file__).resolve().parent.parent
HOSTLESS = frozenset({"lint", "types", "docs", "packaging"})
"""Groups of checks that no host changes; mypy follows no import into one."""
BEHIND_TEST = frozenset({"packaging", "rest", "vendor"})
"""Groups of `make test-all` that `make test` has no time for."""
GIB_PER_WORKER = 4
"""Memory that one process with tests on the emulated NPU, and the engine it runs, must find."""
ARITHMETIC = {
    name: {"ATEN_CPU_CAPABILITY": torch, "ONEDNN_MAX_CPU_ISA": onednn, "MKL_CBWR": mkl}
    for name, torch, onednn, mkl in (
        ("default", "default", "SSE41", "COMPATIBLE"),
        ("avx2", "avx2", "AVX2", "AVX2"),
        ("avx512", "avx512", "AVX512_CORE", "AVX512"),
    )
}
"""Instructions that sums are computed with: their order, and so their last bits, are others."""
NAMES_A_FAULT = ("FAILED ", "ERROR ")
"""How pytest begins the lines that name tests; thousands of others may come after them."""


@dataclass(frozen=True)
class Check:
    """A command of one group; ``make`` targets name groups. Those of a lane run in their order."""

    group: str
    name: str
    command: tuple[str, ...]
    lane: str = "code"


@dataclass(frozen=True)
class Outcome:
    """How a check ended; ``faults``: its lines that name what failed, where it has such."""

    check: Check
    status: int
    seconds: float
    faults: tuple[str, ...] = ()


def native_sources(root: Path) -> tuple[str, ...]:
    """C++ files, relative to the root, for clang-format."""
    folders = (root / "csrc", root / "emulated_npu" / "csrc")
    patterns = ("*.cpp", "*.h")
    files = (path for where in folders for pattern in patterns for path in where.rglob(pattern))
    return tuple(sorted(str(path.relative_to(root)) for path in files))


def emulated_workers(cores: int, gib: float) -> int:
    """Processes for tests that start engines: one a core; fewer, but two, where memory is short.

    Not more: what an engine says within a minute is tested, and more of them make each slower.
    """
    return max(2, min(cores, int(gib // GIB_PER_WORKER)))


def memory_gib() -> float:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def all_checks(root: Path, host: str = DEFAULT, shard: str = "1/1") -> list[Check]:
    """Every check on a host of tools/hosts.py, cheapest first; of engines the part ``shard``."""
    bin_folder = root / HOSTS[host].environment / "bin"

    def tool(name: str) -> str:
        return str(bin_folder / name)

    def pytest(workers: int) -> tuple[str, ...]:
        # A process takes whole files, whose tests share engines; in the order of tests/conftest.py.
        shared_out = ("-n", str(workers), "--dist", "loadfile", "--no-loadscope-reorder")
        return (tool("python"), "-m", "pytest", *shared_out)

    cores = os.cpu_count() or 1
    units = (*pytest(max(2, cores)), "tests/unit", "-m")
    # Strict, with its one named relaxation: the tests compare tokens with a float32 reference.
    emulate = (tool("mkv-ascend"), "emulate", "--strict", "--float32-compute", "--")
    with_engines = (*emulate, *pytest(emulated_workers(cores, memory_gib())))
    part, _, parts = shard.partition("/")
    shared_out = () if parts == "1" else ("--splits", parts, "--group", part)
    engines = (*with_engines, *shared_out, "--durations=25", "tests/emulated", "-m")
    # The supported release of vllm-ascend that set-up does not install.
    port = ("--release", "0.23.0.post1") if host == DEFAULT else ()
    checks = [
        Check("lint", "ruff check", (tool("ruff"), "check", ".")),
        Check("lint", "ruff format", (tool("ruff"), "format", "--check", ".")),
        Check("lint", "import-linter", (tool("lint-imports"),)),
        Check("lint", "hadolint", (tool("hadolint"), "Dockerfile")),
        Check("lint", "commit messages", (tool("python"), "tools/commit_messages.py")),
        Check("types", "mypy", (tool("mypy"),)),
        Check("port", "port report", (tool("python"), "tools/port_report.py", *port)),
        *(
            Check(
                "vendor",
                f"operator {what}",
                (tool("python"), f"tools/operator_{what}.py", "--if-served"),
            )
            for what in ("schemas", "shapes")
        ),
        Check("docs", "mkdocs", (tool("mkdocs"), "build", "--strict", "--quiet")),
        Check("unit", "unit tests", (*units, "not nightly and not packaging"), lane="tests"),
        # Else vLLM starts a process for each class of model that it meets for the first time.
        Check(
            "classes",
            "model classes",
            (tool("python"), "tools/warm_up.py", "--tests"),
            lane="tests",
        ),
        Check("core", "core engines", (*engines, "(core or smoke) and not nightly"), lane="tests"),
        Check("packaging", "packaging", (*units, "packaging"), lane="tests"),
        Check(
            "rest",
            "other engines",
            (*engines, "not nightly and not core and not smoke"),
            lane="tests",
        ),
    ]
    sources = native_sources(root)
    if sources:
        clang_format = (tool("clang-format"), "--dry-run", "--Werror", *sources)
        checks.insert(2, Check("lint", "clang-format", clang_format))
    left_out = frozenset() if host == DEFAULT else HOSTLESS
    return [check for check in checks if check.group not in left_out]


def child_environment(host: str = DEFAULT, arithmetic: str | None = None) -> dict[str, str]:
    """As given, but with one thread for each process unless asked otherwise, and with bytecode:
    without it, as in many containers, each process would compile what it imports anew."""
    environment = os.environ | ARITHMETIC.get(arithmetic or "", {})
    # vLLM keeps what it learnt of model classes by their names: two hosts with one folder would
    # each find the other's, and import all of them anew.
    cache = ROOT / ".cache" / "vllm" / HOSTS[host].vllm_ascend
    environment.setdefault("VLLM_CACHE_ROOT", str(cache))
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment.setdefault("OMP_NUM_THREADS", "1")
    # numba sets the number of threads of all, torch too, when it first runs a loop in parallel.
    environment.setdefault("NUMBA_NUM_THREADS", "1")
    # The theme's notice about its successor is not about these pages.
    environment["NO_MKDOCS_2_WARNING"] = "1"
    return environment


def run(check: Check, root: Path, environment: dict[str, str], prefix: str = "") -> Outcome:
    """Run one check with its output on our own, each line after ``prefix``."""
    print(f"\n{prefix}== {check.name}: {shlex.join(check.command)}", flush=True)
    started = time.monotonic()
    faults: list[str] = []
    try:
        status, faults = _run_with_output(check.command, root, environment, prefix)
    except OSError as error:
        print(f"{prefix}cannot start {check.command[0]}: {error}; run `make setup`", flush=True)
        status = 127
    return Outcome(check, status, time.monotonic() - started, tuple(faults))


def _run_with_output(
    command: Sequence[str], root: Path, environment: dict[str, str], prefix: str
) -> tuple[int, list[str]]:
    """Exit status, and lines that name what failed, where the output comes through us."""
    faults: list[str] = []
    if not prefix:
        return subprocess.run(command, cwd=root, env=environment).returncode, faults
    with subprocess.Popen(
        command,
        cwd=root,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(NAMES_A_FAULT):
                faults.append(line.rstrip())
            # One write: another lane writes lines as well.
            sys.stdout.write(f"{prefix}{line.rstrip()}\n")
            sys.stdout.flush()
    return process.returncode, faults


def run_lanes(chosen: Sequence[Check], root: Path, environment: dict[str, str]) -> list[Outcome]:
    """Run the checks: lanes side by side, those of a lane one after another."""
    lanes = list(dict.fromkeys(check.lane for check in chosen))
    width = max(map(len, lanes), default=0)

    def run_lane(lane: str) -> list[Outcome]:
        prefix = f"{lane:<{width}} | " if len(lanes) > 1 else ""
        return [run(check, root, environment, prefix) for check in chosen if check.lane == lane]

    with ThreadPoolExecutor(max(1, len(lanes))) as pool:
        return [outcome for outcomes in pool.map(run_lane, lanes) for outcome in outcomes]


def summary(outcomes: Sequence[Outcome], seconds: float) -> str:
    """The closing table, and one line on the whole, which took ``seconds``."""
    lines = ["", "== summary"]
    for outcome in outcomes:
        word = "ok" if outcome.status == 0 else f"FAILED (status {outcome.status})"
        lines.append(f"  {outcome.check.name:<16}{outcome.seconds:7.1f} s   {word}")
        lines += [f"    {fault}" for fault in outcome.faults if outcome.status]
    failed = [outcome.check.name for outcome in outcomes if outcome.status != 0]
    verdict = f"failed: {', '.join(failed)}" if failed else "all passed"
    lines.append(f"{len(outcomes)} checks in {seconds:.0f} s, {verdict}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default=DEFAULT, help="of tools/hosts.py (%(default)s)")
    parser.add_argument(
        "--arithmetic",
        choices=ARITHMETIC,
        help="instructions of torch, oneDNN and MKL, which other processors have",
    )
    parser.add_argument("--shard", default="1/1", help="part of the engines, as 2/4 (%(default)s)")
    parser.add_argument("--all", action="store_true", help="what `make test-all` runs")
    parser.add_argument(
        "groups", nargs="*", metavar="group", help="what `make test` runs, if none is named"
    )
    options = parser.parse_args(arguments)
    wanted = options.groups
    try:
        host_named(options.host)
    except UnknownHostError as error:
        parser.error(str(error))
    if not re.fullmatch(r"[1-9]\d*/[1-9]\d*", options.shard):
        parser.error(f"--shard {options.shard}: write part/parts, for instance 2/4")
    checks = all_checks(ROOT, options.host, options.shard)
    groups = list(dict.fromkeys(check.group for check in checks))
    unknown = [name for name in wanted if name not in groups]
    if unknown:
        parser.error(f"no group {unknown[0]!r} on {options.host}; there are {', '.join(groups)}")
    started = time.monotonic()
    asked = set(wanted) or set(groups) - (set() if options.all else BEHIND_TEST)
    chosen = [check for check in checks if check.group in asked]
    environment = child_environment(options.host, options.arithmetic)
    outcomes = run_lanes(chosen, ROOT, environment)
    print(summary(outcomes, time.monotonic() - started), flush=True)
    return 1 if any(outcome.status for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
