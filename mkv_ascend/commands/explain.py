# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend explain``: the plan of a target and a draft, from their config.json files alone."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkv_ascend.attention.options import NAMESPACE
from mkv_ascend.attention.selection import SelectionError
from mkv_ascend.checks.model_layer import ExplainError, NotFromNumbersError
from mkv_ascend.commands.argument_types import json_object, memory_size, positive
from mkv_ascend.commands.runner_option import (
    UnknownRunnerError,
    add_runner_option,
    runner_asked_for,
)
from mkv_ascend.config import ConfigError, parse_config
from mkv_ascend.layout.component import LayoutError
from mkv_ascend.plain_text import shortened

if TYPE_CHECKING:
    from mkv_ascend.checks.planning_inputs import Asked, Found
    from mkv_ascend.layout.report import PlanReport

HELP = "show the KV cache plan of a target and a draft, from their config.json files"

DESCRIPTION = """\
Shows how the KV caches of a target and its draft are planned: groups, layers, backends, pages,
padding, pools, the bytes of one request, and how many requests fit into a memory, beside what
vLLM's own grouping would give.

Needs config.json files only: no weights and no NPU. What each layer keeps is computed from the
numbers of the config for the model types that this command knows; others are built by vLLM itself,
without weights, and what vLLM refuses is refused with its words. One rank of Ascend A2 is shown,
without pipeline or context parallelism and without quantised weights. vLLM's part runs in a process
of the emulated NPU where there is no real one. The engine keeps the layers' own blocks with KV
transfer; its log says which it uses.
"""

EXAMPLES = """\
examples:
  mkv-ascend explain --model /models/gpt-oss-120b --draft /models/gpt-oss-20b
  mkv-ascend explain --model /models/DeepSeek-V3 --speculative-config \\
      '{"method": "mtp", "num_speculative_tokens": 1}' --memory 32GiB
  mkv-ascend explain --model T --draft D --format html --output plan.html
"""

EXIT_REFUSED = 2
DRAFT_TOKENS = 3
"""Of a proposal where only ``--draft`` is given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of ``mkv-ascend explain``."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--model", type=Path, required=True, metavar="DIR", help="directory of the target"
    )
    parser.add_argument("--draft", type=Path, metavar="DIR", help="directory of the draft")
    parser.add_argument(
        "--speculative-config",
        type=json_object,
        metavar="JSON",
        help="as for vllm serve (with --draft alone: method draft_model, 3 tokens)",
    )
    parser.add_argument(
        "--tensor-parallel-size", type=positive, default=1, metavar="N", help="ranks (%(default)s)"
    )
    parser.add_argument(
        "--max-model-len",
        type=positive,
        metavar="TOKENS",
        help="tokens of one request (max_position_embeddings of the target)",
    )
    parser.add_argument(
        "--max-num-batched-tokens",
        type=positive,
        metavar="TOKENS",
        help="as for vllm serve: most tokens of one step (2048, or vLLM's default when built)",
    )
    parser.add_argument(
        "--memory",
        type=memory_size,
        metavar="SIZE",
        help="memory for KV caches on one device, such as 32GiB; gives blocks and concurrency",
    )
    parser.add_argument(
        "--objective",
        choices=("balanced", "fewest_groups", "least_memory"),
        help="what to minimise first (default: layout.objective of --additional-config, else "
        "balanced)",
    )
    parser.add_argument(
        "--max-block-size",
        type=positive,
        metavar="TOKENS",
        help="largest blocks of a KV group beside the layers' own (default: "
        "layout.max_block_size of --additional-config, else the engine's)",
    )
    add_runner_option(parser)
    _add_vllm_arguments(parser)
    parser.add_argument(
        "--format", choices=("text", "json", "html"), default="text", help="(%(default)s)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there, not to stdout")


def _add_vllm_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--build",
        action=argparse.BooleanOptionalAction,
        help="let vLLM build the models, without weights (default: where their numbers do not "
        "tell)",
    )
    parser.add_argument(
        "--block-size",
        type=positive,
        metavar="TOKENS",
        help="as for vllm serve: vllm-ascend takes it for targets of attention beside recurrent "
        "states, and for DeepSeek-V4",
    )
    parser.add_argument("--kv-cache-dtype", default="auto", metavar="DTYPE", help="as vllm serve")
    parser.add_argument(
        "--additional-config", type=json_object, metavar="JSON", help="as for vllm serve"
    )
    parser.add_argument(
        "--vllm-grouping",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask vLLM for its own grouping too, which takes most of the time (default: on)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print or write the plan; returns 2 with a sentence when it cannot be explained."""
    from mkv_ascend.layout.grouping import GroupingError

    try:
        _check_format(arguments.format)
        report = explain(arguments)
    except (ExplainError, SelectionError, LayoutError, GroupingError) as error:
        print(f"mkv-ascend explain: {error}", file=sys.stderr)
        return EXIT_REFUSED
    text = _formatted(report, arguments.format)
    if arguments.output is None:
        sys.stdout.write(text)
        return 0
    try:
        arguments.output.write_text(text, encoding="utf-8")
    except OSError as error:
        print(f"mkv-ascend explain: cannot write {arguments.output}: {error}", file=sys.stderr)
        return EXIT_REFUSED
    return 0


def _check_format(form: str) -> None:
    """Raise ExplainError where what the format needs is not installed."""
    if form == "html" and importlib.util.find_spec("jinja2") is None:
        raise ExplainError("--format html needs jinja2, which is not here: pip install jinja2")


def _formatted(report: PlanReport, form: str) -> str:
    if form == "json":
        return json.dumps(report.to_dict(), indent=2) + "\n"
    if form == "html":
        from mkv_ascend.layout.report_html import html

        return html(report)
    from mkv_ascend.layout.report_text import text

    return shortened(text(report))


def explain(arguments: argparse.Namespace) -> PlanReport:
    """The report that the arguments ask for."""
    from mkv_ascend.checks.model_folders import with_model_folders
    from mkv_ascend.checks.planning_inputs import Asked
    from mkv_ascend.layout.planning import plan
    from mkv_ascend.layout.report import PlanReport

    runner = _runner(arguments)
    engine = with_model_folders(
        {
            "model": str(arguments.model),
            "speculative_config": _speculation(arguments),
            "tensor_parallel_size": arguments.tensor_parallel_size,
            "max_model_len": arguments.max_model_len,
            "max_num_batched_tokens": arguments.max_num_batched_tokens,
            "block_size": arguments.block_size,
            "kv_cache_dtype": arguments.kv_cache_dtype,
            "additional_config": _additional(arguments),
        }
    )
    speculation, asked = engine["speculative_config"], Asked(engine)
    ignored = _refuse_unserved(asked, runner)
    found = _find(arguments, asked, runner)
    return PlanReport(
        subjects=_subjects(arguments, found, speculation, runner),
        planned=plan(found.inputs),
        memory_bytes=arguments.memory,
        other=found.other,
        other_absent=found.other_absent,
        notes=(*ignored, *found.notes),
    )


def _runner(arguments: argparse.Namespace) -> str:
    try:
        return runner_asked_for(arguments.runner, "explain")
    except UnknownRunnerError as error:
        raise ExplainError(str(error)) from error


def _refuse_unserved(asked: Asked, runner: str) -> tuple[str, ...]:
    """Raise ExplainError for blocks that are not served, and drafts that model runner V2 lacks.

    What V2 serves has the plan of model runner V1: one function plans for both, from equal specs.
    Returns notes of what has no effect.
    """
    from mkv_ascend.adapters.installed import rules
    from mkv_ascend.attention.entry import DeviceGeneration
    from mkv_ascend.checks.about_command import block_size
    from mkv_ascend.checks.about_runner import drafts_on_v2
    from mkv_ascend.checks.facts import DeviceFacts
    from mkv_ascend.checks.gathering import gather
    from mkv_ascend.checks.refusal import RefusedError, text_of
    from mkv_ascend.checks.served import note_of_block_size

    engine = {name: value for name, value in asked.engine.items() if value is not None}
    if runner != "v2" and "block_size" not in engine:
        return ()
    device = DeviceFacts(None, None, DeviceGeneration.A2, "the rank that is explained")
    try:
        facts = replace(gather(engine, device, rules()), runner=runner)
        lacking = drafts_on_v2(facts) if runner == "v2" else ()
        if refusals := (*block_size(facts), *lacking):
            raise RefusedError(refusals)
    except RefusedError as error:
        raise ExplainError(text_of(error.refusals)) from error
    return tuple(note_of_block_size(facts))


def _speculation(arguments: argparse.Namespace) -> dict[str, Any] | None:
    """What ``--draft`` and ``--speculative-config`` ask for together; None for no draft."""
    draft, given = arguments.draft, arguments.speculative_config
    if given is None:
        if draft is None:
            return None
        given = {"num_speculative_tokens": DRAFT_TOKENS}
    tokens = given.get("num_speculative_tokens")
    if not isinstance(tokens, int) or tokens < 1:
        raise ExplainError(
            f"num_speculative_tokens of --speculative-config is {tokens!r}; write a whole number "
            "from 1 on"
        )
    model = given.get("model")
    if model is not None and draft is not None and Path(str(model)) != draft:
        raise ExplainError(
            f"--draft is {draft} and model of --speculative-config is {model}; give one of them"
        )
    folder = draft if model is None else model
    found = {**given, "method": str(given.get("method") or "draft_model")}
    return found if folder is None else {**found, "model": str(folder)}


def _additional(arguments: argparse.Namespace) -> dict[str, Any]:
    """The additional configuration; the command's own options come before its ``layout``.

    Raises ExplainError where it cannot be honoured.
    """
    given: dict[str, Any] = arguments.additional_config or {}
    try:
        parse_config(given)
        ours = dict(given.get(NAMESPACE, {}))
        layout = dict(ours.get("layout", {}))
        if arguments.objective is not None:
            layout["objective"] = arguments.objective
        if arguments.max_block_size is not None:
            layout["max_block_size"] = arguments.max_block_size
        if layout:
            given = {**given, NAMESPACE: {**ours, "layout": layout}}
        parse_config(given)
    except ConfigError as error:
        raise ExplainError(str(error)) from error
    return given


def _find(arguments: argparse.Namespace, asked: Asked, runner: str) -> Found:
    """By numbers where they are enough, else by what vLLM builds."""

    from mkv_ascend.adapters.installed import rules
    from mkv_ascend.checks import from_config
    from mkv_ascend.commands import from_vllm

    wanted = arguments.vllm_grouping
    if arguments.build:
        return _with_absence(from_vllm.find(asked, runner, vllm_grouping=wanted), wanted)
    try:
        return _with_vllm(from_config.find(asked, rules()), wanted)
    except NotFromNumbersError as error:
        if arguments.build is False:
            raise ExplainError(f"{error}; leave out --no-build to have vLLM build it") from error
        reason = str(error)
    try:
        built = from_vllm.find(asked, runner, vllm_grouping=wanted)
    except ExplainError as error:
        raise ExplainError(f"{reason}. {error}") from error
    return _with_absence(replace(built, notes=(*built.notes, f"built by vLLM: {reason}")), wanted)


def _with_absence(found: Found, wanted: bool) -> Found:
    return found if wanted else replace(found, other_absent="--no-vllm-grouping")


def _with_vllm(found: Found, wanted: bool) -> Found:
    """With vLLM's own grouping, or why there is none."""

    from mkv_ascend.commands import vllm_groups
    from mkv_ascend.commands.explain_process import ProcessError

    if not wanted:
        return _with_absence(found, wanted)
    inputs = found.inputs
    try:
        other = vllm_groups.ask_vllm(inputs.layers, found.padded_bytes, inputs.request)
    except ProcessError as error:
        return replace(found, other_absent=str(error))
    return replace(found, other=other)


def _subjects(
    arguments: argparse.Namespace,
    found: Found,
    speculation: Mapping[str, Any] | None,
    runner: str,
) -> tuple[tuple[str, str], ...]:
    from mkv_ascend.layout.report_text import count, format_bytes

    subjects = list(found.models)
    if speculation is not None:
        tokens = count(speculation["num_speculative_tokens"], "token")
        subjects.append(("method", f"{speculation['method']}, {tokens} per proposal"))
    if runner != "v1":
        subjects.append(("runner", runner))
    subjects.append(("ranks", str(arguments.tensor_parallel_size)))
    if arguments.memory is not None:
        subjects.append(("memory", f"{format_bytes(arguments.memory)} for KV caches per device"))
    return tuple(subjects)
