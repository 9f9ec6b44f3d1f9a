# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend check``: will a vllm serve command be served, and with what."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkv_ascend import envs
from mkv_ascend.commands import command_words, host_process
from mkv_ascend.commands.command_words import CommandError, memory_size, positive
from mkv_ascend.commands.host_process import ProcessError
from mkv_ascend.plain_text import plain_json, shortened
from mkv_ascend.rules.refusal import Refusal, text_of

if TYPE_CHECKING:
    from mkv_ascend.commands.plan_report import PlanReport

HELP = "say whether a vllm serve command will be served, and with what, without starting it"
EXPLAIN = "explain"
ALIASES = (EXPLAIN,)
"""The same with ``--plan``."""

DESCRIPTION = """\
Judges a vllm serve command, exactly as it will be run, or a target with options of vllm serve. vLLM
makes its configuration, in a process of its own, and builds the models without memory: the answer
is that it will be served, with backends, KV groups, weights, memory, requests at once and the
draft's graph mode; or why it will not, in the words of vLLM, vllm-ascend or mkv_ascend.

Needs the config.json files of the models, and vLLM with vllm-ascend. It takes no NPU: a command
behind mkv-ascend emulate is judged for that emulated NPU; else the NPUs of this machine count, or,
without any, an Ascend A2 of 64 GiB. vllm serve itself refuses the same before it starts an engine,
but for what only layers and memory tell. mkv-ascend explain is mkv-ascend check --plan.
"""

EXAMPLES = """\
examples:
  mkv-ascend check -- vllm serve /models/T --speculative-config \\
      '{"model": "/models/D", "num_speculative_tokens": 3}'
  mkv-ascend check --json --device-memory 64GiB --devices 8 -- vllm serve /models/T -tp 8
  mkv-ascend check /models/T -tp 8 --draft eagle3=/models/E -k 3
  mkv-ascend check --plan --output plan.html /models/T --draft /models/D
  mkv-ascend check -- VLLM_USE_V2_MODEL_RUNNER=1 vllm serve /models/T

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
    add_options(parser)
    parser.add_argument(
        "command",
        nargs=argparse.REMAINDER,
        metavar="TARGET ... | -- vllm serve ...",
        help="a target with options of vllm serve, or a command",
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    """Describe the options; they may stand before a target and behind it."""
    parser.add_argument("--json", action="store_true", help="answer as one JSON object")
    parser.add_argument(
        "--plan",
        action="store_true",
        help="show the plan of the KV caches, beside what vLLM's own grouping would give",
    )
    parser.add_argument(
        "--format",
        choices=("text", "json", "html"),
        help="of the plan (default: text, or as --output ends)",
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there, not to stdout")
    parser.add_argument(
        "--draft", metavar="[METHOD=]DIR", help="directory of the draft, for --speculative-config"
    )
    parser.add_argument(
        *("-k", "--num-speculative-tokens"), type=positive, metavar="K", help="draft tokens (3)"
    )
    parser.add_argument(
        *("-tp", "--tensor-parallel-size"), type=positive, metavar="N", help="vLLM's own (1)"
    )
    parser.add_argument(
        "--devices", type=positive, metavar="N", help="devices of the machine (default: found)"
    )
    parser.add_argument(
        *("--device-memory", "--memory"),
        type=memory_size,
        metavar="SIZE",
        help="memory of each device, such as 64GiB",
    )
    parser.add_argument(
        "--kv-cache-memory",
        type=memory_size,
        metavar="SIZE",
        help="memory for KV caches on each device",
    )
    parser.add_argument(
        "--runner",
        choices=("v1", "v2"),
        help="vLLM's model runner (default: what VLLM_USE_V2_MODEL_RUNNER says)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the answer; returns the exit status."""
    arguments = _with_options_behind(arguments)
    arguments.plan |= arguments.command_name == EXPLAIN
    try:
        answer = judged(arguments)
    except (CommandError, ProcessError, envs.EnvironmentVariableError) as error:
        answer = {"answer": "unreadable", "problem": str(error)}
    return say(answer, arguments)


def _with_options_behind(arguments: argparse.Namespace) -> argparse.Namespace:
    """With options of ours that stand behind a target."""
    if arguments.command[:1] == ["--"]:
        return arguments
    parser = argparse.ArgumentParser(prog="mkv-ascend check", add_help=False, allow_abbrev=False)
    add_options(parser)
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    found, rest = parser.parse_known_args(arguments.command)
    return argparse.Namespace(**{**vars(arguments), **vars(found), "command": rest})


def judged(arguments: argparse.Namespace) -> dict[str, Any]:
    """The answer of a process with vLLM.

    Raises:
        CommandError: the command is none of vLLM's server; ProcessError: vLLM cannot be asked.
    """
    command = command_words.read(
        arguments.command, arguments.draft, arguments.num_speculative_tokens
    )
    if arguments.tensor_parallel_size is not None:
        command.serve += ["--tensor-parallel-size", str(arguments.tensor_parallel_size)]
    if arguments.kv_cache_memory is not None:
        command.serve += ["--kv-cache-memory-bytes", str(arguments.kv_cache_memory)]
    command.variables |= host_process.runner_variables(arguments.runner)
    variables, device = host_process.place(arguments, command)
    words = [_whole(word) for word in command.serve]
    question = {"words": words, "device": device, "plan": arguments.plan}
    answer: dict[str, Any] = host_process.ask(question, variables, "check")
    return answer


def _whole(word: str) -> str:
    """A path for a process that runs in a folder of its own; inside of JSON as well."""
    if word.startswith("{"):
        try:
            value = json.loads(word)
        except (ValueError, RecursionError):
            return word
        if isinstance(value, dict) and isinstance(value.get("model"), str):
            return json.dumps({**value, "model": _whole(value["model"])})
        return word
    is_path = not word.startswith("-") and len(word) < os.pathconf("/", "PC_PATH_MAX")
    return os.path.abspath(word) if is_path and "\0" not in word and os.path.exists(word) else word


def say(answer: dict[str, Any], arguments: argparse.Namespace) -> int:
    """Print or write an answer; returns the exit status."""
    inputs = answer.pop("inputs", None)
    shared, grouping = answer.pop("shared", ()), answer.pop("vllm_grouping", None)
    for name in ("works", "untold"):
        answer.pop(name, None)
    kind = answer["answer"]
    if kind == "served" and arguments.plan:
        if inputs is None:
            answer = {"answer": "unreadable", "problem": f"there is no plan: {answer['unplanned']}"}
            kind = "unreadable"
        else:
            report = _report(answer, inputs, shared, grouping)
            return _write(_formatted(report, arguments), arguments)
    if arguments.json:
        status = _write(plain_json(answer) + "\n", arguments)
        return status or _status(kind)
    if kind == "served":
        return _write(shortened("\n".join(lines_of(answer))) + "\n", arguments)
    problem = answer.get("problem")
    if kind == "refused":
        problem = text_of(Refusal(**refusal) for refusal in answer["refusals"])
    print(f"mkv-ascend {arguments.command_name}: {problem}", file=sys.stderr)
    return _status(kind)


def _status(kind: str) -> int:
    return {"served": EXIT_SERVED, "refused": EXIT_REFUSED}.get(kind, EXIT_UNREADABLE)


def _write(text: str, arguments: argparse.Namespace) -> int:
    if arguments.output is None:
        sys.stdout.write(text)
    else:
        arguments.output.write_text(text, encoding="utf-8")
    return 0


def _report(
    answer: Mapping[str, Any],
    inputs: Any,
    shared: Sequence[Sequence[str]],
    grouping: Mapping[str, Any] | None,
) -> PlanReport:
    from pydantic import TypeAdapter

    from mkv_ascend.commands.plan_report import PlanReport
    from mkv_ascend.layout.planning import PlanInputs, plan
    from mkv_ascend.layout.report import OtherGrouping, count, format_bytes

    subjects = [(role, Path(name).name) for role, name in answer["models"].items()]
    if answer["method"] is not None:
        tokens = count(answer["tokens_per_proposal"], "token")
        subjects.append(("method", f"{answer['method']}, {tokens} per proposal"))
    if answer["weight_bytes"] is not None:
        subjects.append(("weights", f"{format_bytes(answer['weight_bytes'])} on each device"))
    notes = list(answer["notes"])
    if shared:
        reader, owner = shared[0]
        number = count(len(shared), "layer")
        notes.append(f"{number} without a cache of its own, such as {reader}, reads {owner}'s")
    return PlanReport(
        subjects=tuple(subjects),
        planned=plan(TypeAdapter(PlanInputs).validate_python(inputs)),
        memory_bytes=answer["cache_bytes"],
        other=None if grouping is None else OtherGrouping(**grouping),
        other_absent="it was not asked for",
        notes=tuple(notes),
    )


def _formatted(report: PlanReport, arguments: argparse.Namespace) -> str:
    suffix = "" if arguments.output is None else arguments.output.suffix[1:]
    form = arguments.format or (suffix if suffix in ("json", "html") else "text")
    if arguments.json or form == "json":
        return json.dumps(report.to_dict(), indent=2) + "\n"
    from mkv_ascend.commands.plan_report import html, text

    return html(report) if form == "html" else shortened(text(report))


def lines_of(answer: Mapping[str, Any]) -> list[str]:
    """A served command's answer for people."""
    lines = ["will be served"]
    lines += [f"  {role:<10}{name}" for role, name in answer["models"].items()]
    if answer["method"] is not None:
        tokens = answer["tokens_per_proposal"]
        lines.append(f"  method    {answer['method']}, {tokens} tokens a proposal")
    lines.append(f"  graphs    target {answer['target_graphs']}")
    if answer["draft_graphs"] is not None:
        lines.append(f"            draft {answer['draft_graphs']}")
    for role, counts in answer["backends"].items():
        words = ", ".join(f"{name} ({number} layers)" for name, number in counts.items())
        lines.append(f"  backends  {role}: {words}")
    lines += _memory_lines(answer)
    lines += [f"  note      {note}" for note in answer["notes"]]
    return lines


def _memory_lines(answer: Mapping[str, Any]) -> list[str]:
    lines = []
    if answer["weight_bytes"] is not None:
        gib, draft = answer["weight_bytes"] / 2**30, answer["draft_weight_bytes"] / 2**30
        of_draft = f", {draft:.2f} GiB of them the draft's" if draft else ""
        lines.append(f"  weights   {gib:.2f} GiB on each device{of_draft}")
    if answer["unplanned"]:
        return [*lines, f"  memory    not told: {answer['unplanned']}"]
    lines += [
        f"  KV group  {index}: {group['target_layers']} layers of the target, "
        f"{group['draft_layers']} of the draft, blocks of {group['block_size']} tokens"
        for index, group in enumerate(answer["groups"])
    ]
    if answer["request_bytes"] is not None:
        mib = answer["request_bytes"] / 2**20
        length = answer["max_model_len"]
        lines.append(f"  memory    {mib:.1f} MiB for one request of {length} tokens")
    if answer["requests"] is not None and answer["cache_bytes"] is not None:
        lines.append(
            f"  requests  {answer['requests']} of that length at once in "
            f"{answer['cache_bytes'] / 2**20:.0f} MiB ({answer['basis']})"
        )
    return lines
