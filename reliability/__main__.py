# SPDX-License-Identifier: Apache-2.0
"""Look for wrong tokens, lost requests, hangs and leaks beyond what tests name.

Run each command on the emulated NPU, or as it is on an Ascend host:

    mkv-ascend emulate --strict --float32-compute -- python -m reliability engines --count 20
    mkv-ascend emulate --strict --float32-compute -- python -m reliability load --pair mla
    mkv-ascend emulate --strict --float32-compute -- python -m reliability faults --count 10
    mkv-ascend emulate --strict --float32-compute -- python -m reliability fuzz
    mkv-ascend emulate --strict --float32-compute -- python -m reliability pairs --count 12
    mkv-ascend emulate --strict --float32-compute -- python -m reliability bookkeeping
    mkv-ascend emulate --strict --float32-compute -- python -m reliability started

Whatever is drawn comes from a number or a seed: the same one draws the same again.
Exit status 1: something failed. `COMMAND --help` says what a command does.
"""

from __future__ import annotations

import argparse
import signal
import sys

from benchmarks.host import add_runner_option, require_runner
from reliability import (
    bookkeeping,
    engines,
    faults,
    fuzz,
    load,
    pairs,
    plans,
    started,
)

COMMANDS = {
    "bookkeeping": bookkeeping,
    "engines": engines,
    "faults": faults,
    "fuzz": fuzz,
    "load": load,
    "pairs": pairs,
    "plans": plans,
    "started": started,
}


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m reliability",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        described = (module.__doc__ or "").strip()
        command = commands.add_parser(
            name,
            help=described.splitlines()[0],
            description=described,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.add_argument("--json", action="store_true", help="print what was found as JSON")
        add_runner_option(command)
    asked = parser.parse_args(arguments)
    try:
        require_runner(asked.runner)
    except LookupError as error:
        print(f"reliability: {error}", file=sys.stderr)
        return 2
    status: int = COMMANDS[asked.command].run(asked)
    return status


if __name__ == "__main__":
    # A server has a session of its own: it is ended where this process is left, not with it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    sys.exit(main())
