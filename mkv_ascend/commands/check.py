# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend check -- vllm serve ...``: will this command be served, and with what."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mkv_ascend import envs
from mkv_ascend.commands.argument_types import memory_size, positive
from mkv_ascend.commands.runner_option import (
    UnknownRunnerError,
    add_runner_option,
    runner_asked_for,
)
from mkv_ascend.plain_text import plain_json, shortened

if TYPE_CHECKING:
    from mkv_ascend.checks.refusal import Refusal
    from mkv_ascend.checks.served import Served

HELP = "say whether a vllm serve command will be served, and with what, without starting it"

DESCRIPTION = """\
Reads a vllm serve command, exactly as it will be run, and answers in seconds: that it will be
served, with backends, KV groups, memory, requests at once and the draft's graph mode; or every
reason why it will not, each with what was asked, what is possible and what to change.

Needs the config.json files of the models only: no weights, no NPU, no vLLM. A command behind
mkv-ascend emulate is judged for that emulated NPU; else the NPUs of this machine count, or, without
any, an Ascend A2 of 64 GiB. vllm serve itself refuses the same before it starts an engine.
"""

EXAMPLES = """\
examples:
  mkv-ascend check -- vllm serve /models/T --speculative-config \\
      '{"model": "/models/D", "num_speculative_tokens": 3}'
  mkv-ascend check --json --memory 64GiB --devices 8 -- vllm serve /models/T -tp 8
  mkv-ascend check -- mkv-ascend emulate --devices 2 -- vllm serve /models/T -tp 2

exit status: 0 it will be served; 1 it will be refused; 2 the command cannot be read
"""

EXIT_SERVED = 0
EXIT_REFUSED = 1
EXIT_UNREADABLE = 2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of ``mkv-ascend check``."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--json", action="store_true", help="answer as one JSON object")
    parser.add_argument(
        "--devices", type=positive, metavar="N", help="devices of the machine (default: found)"
    )
    parser.add_argument(
        "--memory", type=memory_size, metavar="SIZE", help="memory of each device, such as 64GiB"
    )
    add_runner_option(parser)
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- vllm serve ...", help="the command"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the answer; returns the exit status."""
    from mkv_ascend.adapters.installed import rules
    from mkv_ascend.checks.judging import judge
    from mkv_ascend.checks.model_folders import read_by_vllm_alone
    from mkv_ascend.checks.refusal import RefusedError
    from mkv_ascend.checks.served import served
    from mkv_ascend.checks.variables import with_variables
    from mkv_ascend.commands.check_devices import devices_of, split_emulate
    from mkv_ascend.commands.serve_arguments import CommandError, read_command

    words = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    try:
        emulated, words = split_emulate(words)
        engine = read_command(words, rules().vllm)
        device = devices_of(arguments, emulated)
        runner = runner_asked_for(arguments.runner, "check")
    except (CommandError, UnknownRunnerError, envs.EnvironmentVariableError) as error:
        return _say_unreadable(str(error), arguments.json)
    if others := read_by_vllm_alone(engine):
        problem = f"{', '.join(others)}: only vLLM reads its configuration, which is no config.json"
        return _say_unreadable(f"{problem} in its folder; vllm serve takes it", arguments.json)
    try:
        asked = with_variables(engine, os.environ, rules())
        facts, unplanned = judge(asked, device, rules(), runner)
    except RefusedError as error:
        return _say_refused(error.refusals, arguments.json)
    return _say_served(served(facts, unplanned), facts_models(facts), arguments.json)


def facts_models(facts: Any) -> dict[str, str]:
    """Role -> name of each model."""
    models = {"target": facts.target.name}
    if facts.draft is not None:
        models["draft"] = facts.draft.name
    return models


def _say_unreadable(problem: str, as_json: bool) -> int:
    if as_json:
        _print_json({"answer": "unreadable", "problem": problem})
    else:
        print(f"mkv-ascend check: {problem}", file=sys.stderr)
    return EXIT_UNREADABLE


def _say_refused(refusals: tuple[Refusal, ...], as_json: bool) -> int:
    from mkv_ascend.checks.refusal import text_of

    if as_json:
        found = [dataclasses.asdict(refusal) for refusal in refusals]
        _print_json({"answer": "refused", "refusals": found})
    else:
        print(f"mkv-ascend check: {text_of(refusals)}", file=sys.stderr)
    return EXIT_REFUSED


def _say_served(answer: Served, models: Mapping[str, str], as_json: bool) -> int:
    if as_json:
        _print_json({"answer": "served", "models": models, **dataclasses.asdict(answer)})
    else:
        print(shortened("\n".join(_lines(answer, models))))
    return EXIT_SERVED


def _print_json(answer: Mapping[str, Any]) -> None:
    print(plain_json(answer))


def _lines(answer: Served, models: Mapping[str, str]) -> list[str]:
    lines = ["will be served"]
    lines += [f"  {role:<10}{name}" for role, name in models.items()]
    if answer.method is not None:
        lines.append(f"  method    {answer.method}, {answer.tokens_per_proposal} tokens a proposal")
    lines.append(f"  graphs    target {answer.target_graphs}")
    if answer.draft_graphs is not None:
        lines.append(f"            draft {answer.draft_graphs}")
    for role, counts in answer.backends.items():
        words = ", ".join(f"{name} ({number} layers)" for name, number in counts.items())
        lines.append(f"  backends  {role}: {words}")
    lines += _memory_lines(answer)
    lines += [f"  note      {note}" for note in answer.notes]
    return lines


def _memory_lines(answer: Served) -> list[str]:
    if answer.unplanned:
        return [f"  memory    not told: {answer.unplanned}"]
    lines = [
        f"  KV group  {index}: {group.target_layers} layers of the target, {group.draft_layers} of "
        f"the draft, blocks of {group.block_size} tokens"
        for index, group in enumerate(answer.groups)
    ]
    if answer.request_bytes is not None:
        mib = answer.request_bytes / 2**20
        lines.append(f"  memory    {mib:.1f} MiB for one request of {answer.max_model_len} tokens")
    if answer.requests is not None and answer.cache_bytes is not None:
        lines.append(
            f"  requests  {answer.requests} of that length at once in "
            f"{answer.cache_bytes / 2**20:.0f} MiB ({answer.basis})"
        )
    return lines
