# SPDX-License-Identifier: Apache-2.0
"""Check AscendC kernels for what CANN's compiler refuses and an ordinary one does not.

    .venv/bin/python tools/check_kernels.py                       every kernel of csrc/ascend
    .venv/bin/python tools/check_kernels.py my_kernel.cpp         one

No CANN and no system compiler is needed: the sources are parsed by libclang (pip), which knows
functions of the cores and address spaces. Reported are calls between host and cores, pointers of
mixed memories, double, recursion, the standard library, what the language lacks there, and stacks
over 32 KB. Exit status: 0 clean, 1 findings.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernel_calls import STACK_BYTES, CallGraph
from kernel_syntax import REMEDIES, ROOT, Finding, errors, parse

KERNELS = ROOT / "csrc" / "ascend"


@dataclass(frozen=True)
class Outcome:
    """What was found in one source, one finding for each line and rule, and its kernels' stacks."""

    findings: tuple[Finding, ...]
    stacks: dict[str, int]


def kernel_sources() -> list[Path]:
    """The sources of csrc/ascend that hold kernels."""
    paths = sorted(KERNELS.glob("*.cpp"))
    return [path for path in paths if "__global__" in path.read_text(encoding="utf-8")]


def check(source: Path) -> Outcome:
    """Parse a source for the cores and for the host, and judge it."""
    units = {side: parse(source, side) for side in ("cores", "host")}
    graph = CallGraph(units["cores"])
    found = [one for side, unit in units.items() for one in errors(unit, side, source)]
    first = {
        (one.file, one.line, one.rule): one for one in sorted([*found, *graph.findings()])[::-1]
    }
    stacks = {graph.functions[key].name: graph.stack(key).bytes for key in graph.kernels}
    return Outcome(tuple(sorted(first.values())), stacks)


def main(given: Sequence[str] | None = None) -> int:
    rules = "\n".join(f"  {rule:<18}{remedy}" for rule, remedy in REMEDIES.items())
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").strip(),
        epilog=f"rules, and what to change:\n{rules}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("sources", nargs="*", type=Path, metavar="source", help="of csrc/ascend")
    sources = parser.parse_args(given).sources or kernel_sources()
    missing = [str(path) for path in sources if not path.is_file()]
    if missing:
        parser.error(f"no such file: {', '.join(missing)}; give C++ sources that hold kernels")
    outcomes = [check(path.resolve()) for path in sources]
    findings = sorted({finding for outcome in outcomes for finding in outcome.findings})
    for finding in findings:
        print(finding)
    for outcome in outcomes:
        for name, needed in outcome.stacks.items():
            print(f"{name}: at most {needed} of {STACK_BYTES} bytes of stack")
    print(f"{len(sources)} sources, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
