# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend bench``: a server for each draft, K and backend, measured by vLLM's own client."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkv_ascend.ascend_host import find_ascend
from mkv_ascend.commands import draft_options, emulator
from mkv_ascend.commands.argument_types import positive

if TYPE_CHECKING:
    from mkv_ascend.commands.bench_runs import Run

HELP = "measure drafts, numbers of draft tokens and backends with vllm bench serve"

DESCRIPTION = """\
Starts `vllm serve` for the target alone, and then once for each draft, number of draft tokens and
backend. Each server is asked the same requests by `vllm bench serve`. Prints tokens of a step,
accepted draft tokens by position and times; --html writes the same as a page with plots.

Without an NPU the servers run on the emulated one. Times mean nothing there, so none is reported:
counts are. Exit status 1: a server did not start, or a request failed.
"""

EXAMPLES = """\
examples:
  mkv-ascend bench /models/Qwen3-32B --draft eagle3=/models/Qwen3-32B-eagle3 --tokens 2,4 \\
      --prompts questions.jsonl --html report.html --serve='--tensor-parallel-size 4'
  mkv-ascend bench /models/Qwen3-8B --draft /models/Qwen3-0.6B --draft-backend auto \\
      --draft-backend fused_infer_attention --concurrency 8 --json
"""

EXIT_FAILED = 1
EXIT_REFUSED = 2
LOG_FOLDER = Path(".cache/bench")
LOG_WIDTH = 160
NEEDED = {"pandas": "pandas", "rich": "rich", "vllm": "vllm", "vllm_ascend": "vllm-ascend"}
"""Module -> its distribution."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of ``mkv-ascend bench``."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("target", type=Path, metavar="TARGET", help="directory of the target")
    draft_options.add_arguments(parser)
    parser.add_argument(
        "--tokens", type=_numbers, default=(3,), metavar="K,...", help="draft tokens (3)"
    )
    for role in ("target", "draft"):
        parser.add_argument(
            f"--{role}-backend",
            action="append",
            metavar="NAME",
            help=f"attention backend of the {role}'s layers; may be given several times, `auto` "
            "among them (auto)",
        )
    parser.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help='JSON lines with "prompt"; without it random tokens, which drafts do not foresee',
    )
    parser.add_argument("--requests", type=positive, default=32, metavar="N", help="(%(default)s)")
    parser.add_argument(
        "--concurrency", type=positive, default=8, metavar="N", help="at once (%(default)s)"
    )
    parser.add_argument(
        "--input",
        type=positive,
        default=256,
        metavar="TOKENS",
        help="of a random prompt (%(default)s)",
    )
    parser.add_argument(
        "--output", type=positive, default=128, metavar="TOKENS", help="(%(default)s)"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write a page with plots")
    parser.add_argument("--json", action="store_true", help="answer as one JSON object")
    parser.add_argument(
        "--serve",
        type=shlex.split,
        default=[],
        metavar="'OPTIONS'",
        help="of vllm serve, for each server, as one quoted text after an equals sign",
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(positive(part) for part in text.split(","))


def run(arguments: argparse.Namespace) -> int:
    """Measure each run; returns 0 if all ended well."""
    from mkv_ascend.commands.bench_runs import runs

    missing = [NEEDED[name] for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return _refused(f"not installed here: {', '.join(missing)}")
    if not (arguments.target / "config.json").is_file():
        return _refused(f"no file {arguments.target}/config.json")
    if arguments.prompts is not None and not arguments.prompts.is_file():
        return _refused(f"--prompts: no file {arguments.prompts}")
    # Said now, and not after everything was measured.
    if arguments.html is not None and not os.access(arguments.html.resolve().parent, os.W_OK):
        return _refused(f"--html: the folder of {arguments.html} is not there, or not writable")
    emulated = not find_ascend()
    try:
        asked = runs(arguments)
        environment = _environment(emulated)
    except (draft_options.DraftOptionError, emulator.EmulatorError) as error:
        return _refused(str(error))
    # Ended like Ctrl-C, so that the server, which has a session of its own, is ended as well.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        answer = _measured(arguments, asked, environment, emulated)
    except KeyboardInterrupt:
        return _refused("stopped")
    _show(arguments, answer)
    return EXIT_FAILED if any("failed" in one for one in answer["runs"]) else 0


def _refused(reason: str) -> int:
    print(f"mkv-ascend bench: {reason}", file=sys.stderr)
    return EXIT_REFUSED


def _environment(emulated: bool) -> dict[str, str] | None:
    """Variables of the servers; None: those of this process."""
    if not emulated:
        return None
    if not emulator.is_installed():
        raise emulator.EmulatorError(f"no NPU was found here, and {emulator.HOW_TO_INSTALL}")
    return emulator.environment_for((sys.executable,), os.environ)


def _measured(
    arguments: argparse.Namespace,
    asked: list[Run],
    environment: dict[str, str] | None,
    emulated: bool,
) -> dict[str, Any]:
    from mkv_ascend.commands.bench_runs import measure

    found = []
    for number, one in enumerate(asked, start=1):
        said = f"{number} of {len(asked)}: {one.name}"
        print(f"{said}: starting vllm serve", file=sys.stderr)
        found.append(measure(one, arguments, environment, LOG_FOLDER / f"{number}.log"))
        outcome = found[-1].get("failed", "measured")
        print(f"{said}: {outcome.splitlines()[0]}", file=sys.stderr)
        if emulated:
            found[-1].pop("times", None)
    return {
        "target": arguments.target.resolve().name,
        "emulated": emulated,
        "requests": arguments.requests,
        "concurrency": arguments.concurrency,
        "runs": found,
    }


def _show(arguments: argparse.Namespace, answer: dict[str, Any]) -> None:
    from rich.console import Console

    from mkv_ascend.commands import bench_report

    if arguments.html is not None:
        arguments.html.write_text(bench_report.html(answer), encoding="utf-8")
    if arguments.json:
        print(json.dumps(answer, indent=2))
        return
    # A pipe has no width of its own; rich would fold the table to 80 characters.
    width = None if sys.stdout.isatty() else LOG_WIDTH
    bench_report.show(answer, Console(highlight=False, soft_wrap=True, width=width))
