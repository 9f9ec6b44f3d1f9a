# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend explain``: the plan of a target and a draft, from their config.json files alone."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkv_ascend import envs

if TYPE_CHECKING:
    from mkv_ascend.commands.explain_models import ModelConfig
    from mkv_ascend.commands.explain_plan import NamedLayer
    from mkv_ascend.layout.demand import Request
    from mkv_ascend.layout.report import OtherGrouping, PlanReport

HELP = "show the KV cache plan of a target and a draft, from their config.json files"

DESCRIPTION = """\
Shows how the KV caches of a target and its draft are planned: groups, layers, backends, pages,
padding, pools, the bytes of one request, and how many requests fit into a memory, beside what
vLLM's own grouping would give.

Needs config.json files only: no weights, no NPU, and no model is built. What each layer keeps is
computed from the numbers of the config, for the model types that this command knows; others are
refused by name. Caches have the model's dtype, on one rank of Ascend A2, without pipeline or
context parallelism and without KV quantisation. vLLM's part is computed by its own functions, in a
process of the emulated NPU where there is no real one. The engine may join groups that are apart
here; its log says which it uses.
"""

EXAMPLES = """\
examples:
  mkv-ascend explain --model /models/DeepSeek-V3 --draft /models/gpt-oss-20b
  mkv-ascend explain --model /models/DeepSeek-V3 --speculative-config \\
      '{"method": "mtp", "num_speculative_tokens": 1}' --memory 32GiB
  mkv-ascend explain --model T --draft D --format html --output plan.html
"""

EXIT_REFUSED = 2
DRAFT_TOKENS = 3
WITHOUT_LAYERS = frozenset({"ngram", "ngram_gpu", "suffix"})
"""Methods that draft without a model."""
WITH_MODEL = frozenset({"draft_model", "eagle", "eagle3"})
PLANNED_BY_ENGINE = frozenset({"full_attention", "sliding_window", "chunked_local", "mla"})
"""Kinds that the engine of this release plans (plugin/layer_facts.py, ``is_planned``)."""


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
        type=_json_object,
        metavar="JSON",
        help="as for vllm serve; method, model, num_speculative_tokens and "
        "draft_tensor_parallel_size are read (with --draft alone: method draft_model, "
        f"{DRAFT_TOKENS} tokens)",
    )
    parser.add_argument(
        "--tensor-parallel-size", type=_positive, default=1, metavar="N", help="ranks (%(default)s)"
    )
    parser.add_argument(
        "--max-model-len",
        type=_positive,
        metavar="TOKENS",
        help="tokens of one request (max_position_embeddings of the target)",
    )
    parser.add_argument(
        "--memory",
        type=_bytes,
        metavar="SIZE",
        help="memory for KV caches on one device, such as 32GiB; gives blocks and concurrency",
    )
    parser.add_argument(
        "--objective",
        choices=("fewest_groups", "least_memory"),
        default="fewest_groups",
        help="what to minimise first (%(default)s)",
    )
    parser.add_argument(
        "--max-block-size",
        type=_positive,
        metavar="TOKENS",
        help="largest blocks of a KV group (default: the engine's, see layout.max_block_size)",
    )
    parser.add_argument(
        "--vllm-grouping",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="ask vLLM for its own grouping too, which takes most of the time (default: on)",
    )
    parser.add_argument(
        "--format", choices=("text", "json", "html"), default="text", help="(%(default)s)"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write there, not to stdout")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a whole number from 1 on")
    return int(text)


def _bytes(text: str) -> int:
    try:
        return envs.parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a JSON object")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Print or write the plan; returns 2 with a sentence when it cannot be explained."""
    from mkv_ascend.attention.selection import SelectionError
    from mkv_ascend.commands.explain_models import ExplainError
    from mkv_ascend.layout.component import LayoutError
    from mkv_ascend.layout.grouping import GroupingError

    try:
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


def _formatted(report: PlanReport, form: str) -> str:
    if form == "json":
        return json.dumps(report.to_plain(), indent=2) + "\n"
    if form == "html":
        from mkv_ascend.layout.report_html import html

        return html(report)
    from mkv_ascend.layout.report_text import text

    return text(report)


def explain(arguments: argparse.Namespace) -> PlanReport:
    """The report that the arguments ask for."""
    from mkv_ascend.commands import explain_plan
    from mkv_ascend.commands.explain_models import read_model
    from mkv_ascend.layout.demand import Request
    from mkv_ascend.layout.grouping import GroupingOptions, Objective
    from mkv_ascend.layout.report import PlanReport

    target = read_model(arguments.model)
    method, draft, draft_tokens = _speculation(arguments, target)
    layers = _layers(arguments, target, draft, method, draft_tokens)
    tokens = arguments.max_model_len or target.number("max_position_embeddings")
    request = Request(tokens=tokens, tokens_per_step=1 + draft_tokens)
    specs = explain_plan.specs_of(layers, draft_tokens)
    options = GroupingOptions(
        Objective(arguments.objective),
        max_block_size=arguments.max_block_size,
    )
    planned = explain_plan.plan_layers(layers, specs, request, options)
    other, absent = _vllm(arguments.vllm_grouping, specs, request)
    return PlanReport(
        subjects=_subjects(arguments, target, draft, method, draft_tokens, layers),
        request=request,
        grouping=planned.grouping,
        plan=planned.plan,
        backends=planned.backends,
        memory_bytes=arguments.memory,
        other=other,
        other_absent=absent,
        notes=_notes(layers),
    )


def _speculation(
    arguments: argparse.Namespace, target: ModelConfig
) -> tuple[str, ModelConfig | None, int]:
    """Method (empty for none), the draft's config (None without a model), tokens per proposal."""
    from mkv_ascend.commands.explain_models import ExplainError, read_model

    options = arguments.speculative_config
    if options is None:
        if arguments.draft is None:
            return "", None, 0
        return "draft_model", read_model(arguments.draft), DRAFT_TOKENS
    method = options.get("method", "draft_model")
    tokens = options.get("num_speculative_tokens")
    if not isinstance(tokens, int) or tokens < 1:
        raise ExplainError(
            f"num_speculative_tokens of --speculative-config is {tokens!r}; write a whole number "
            "from 1 on"
        )
    folder = _draft_folder(arguments.draft, options.get("model"))
    if method in WITHOUT_LAYERS:
        return method, None, tokens
    if method == "mtp":
        return method, read_model(folder) if folder else target, tokens
    if method not in WITH_MODEL:
        known = ", ".join(sorted(WITHOUT_LAYERS | WITH_MODEL | {"mtp"}))
        raise ExplainError(f"speculative method {method!r} cannot be explained; known: {known}")
    if folder is None:
        raise ExplainError(
            f"speculative method {method} needs a draft: give --draft, or model in "
            "--speculative-config"
        )
    return method, read_model(folder), tokens


def _draft_folder(draft: Path | None, model: object) -> Path | None:
    from mkv_ascend.commands.explain_models import ExplainError

    if model is None:
        return draft
    if draft is not None and Path(str(model)) != draft:
        raise ExplainError(
            f"--draft is {draft} and model of --speculative-config is {model}; give one of them"
        )
    return Path(str(model))


def _layers(
    arguments: argparse.Namespace,
    target: ModelConfig,
    draft: ModelConfig | None,
    method: str,
    draft_tokens: int,
) -> list[NamedLayer]:
    """The layers of both models on one rank, named by their number."""
    from mkv_ascend.commands.explain_plan import NamedLayer
    from mkv_ascend.layout.kind import Role

    ranks = arguments.tensor_parallel_size
    layers = [
        NamedLayer(f"target.layers.{index}", Role.TARGET, target.dtype, layer)
        for index, layer in enumerate(target.layers(ranks, draft_tokens))
    ]
    if draft is None:
        return layers
    ranks = _draft_ranks(arguments, ranks)
    found = draft.mtp_layers(ranks) if method == "mtp" else draft.layers(ranks, draft_tokens)
    return layers + [
        NamedLayer(f"draft.layers.{index}", Role.DRAFT, draft.dtype, layer)
        for index, layer in enumerate(found)
    ]


def _draft_ranks(arguments: argparse.Namespace, ranks: int) -> int:
    from mkv_ascend.commands.explain_models import ExplainError

    asked = (arguments.speculative_config or {}).get("draft_tensor_parallel_size", ranks)
    if asked not in (1, ranks):
        raise ExplainError(
            f"draft_tensor_parallel_size is {asked!r}; vLLM takes 1 or the target's, {ranks}"
        )
    return int(asked)


def _vllm(
    wanted: bool, specs: dict[str, Any], request: Request
) -> tuple[OtherGrouping | None, str]:
    """vLLM's own grouping, or None and why there is none."""
    from mkv_ascend.commands.explain_stock import StockError, ask_vllm

    if not wanted:
        return None, "--no-vllm-grouping"
    try:
        return ask_vllm(specs, request), ""
    except StockError as error:
        return None, str(error)


def _subjects(
    arguments: argparse.Namespace,
    target: ModelConfig,
    draft: ModelConfig | None,
    method: str,
    draft_tokens: int,
    layers: Sequence[NamedLayer],
) -> tuple[tuple[str, str], ...]:
    from mkv_ascend.layout.report_text import count, format_bytes

    def described(model: ModelConfig, role: str) -> str:
        number = sum(named.role == role for named in layers)
        name = model.folder.resolve().name
        return f"{name} ({model.model_type}, {count(number, 'layer')}, {model.dtype})"

    subjects = [("target", described(target, "target"))]
    if draft is not None:
        subjects.append(("draft", described(draft, "draft")))
    if method:
        subjects.append(("method", f"{method}, {count(draft_tokens, 'token')} per proposal"))
    subjects.append(("ranks", str(arguments.tensor_parallel_size)))
    if arguments.memory is not None:
        subjects.append(("memory", f"{format_bytes(arguments.memory)} for KV caches per device"))
    return tuple(subjects)


def _notes(layers: Sequence[NamedLayer]) -> tuple[str, ...]:
    """What a reader must know before taking the plan for the engine's."""
    from mkv_ascend.commands.explain_plan import state_problem

    notes = []
    others = sorted({str(named.layer.kind) for named in layers} - PLANNED_BY_ENGINE)
    if others:
        notes.append(
            f"the engine of this release leaves models with {', '.join(others)} layers to vLLM's "
            "grouping: for them this plan is what planning can do, not what is served"
        )
    elif not any(named.role == "draft" for named in layers):
        notes.append(
            "without a draft there is nothing to fold: the engine of this release leaves a target "
            "alone to vLLM's grouping"
        )
    problem = state_problem(layers)
    return (*notes, problem) if problem else tuple(notes)
