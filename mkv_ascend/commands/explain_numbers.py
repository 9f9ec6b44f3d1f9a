# SPDX-License-Identifier: Apache-2.0
"""Findings from the numbers of config.json files: no model is built, and no vLLM needed."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

from mkv_ascend.commands import explain_plan
from mkv_ascend.commands.explain_models import (
    ExplainError,
    ModelConfig,
    NotFromNumbersError,
    read_model,
)
from mkv_ascend.commands.explain_plan import Findings, NamedLayer, state_problem
from mkv_ascend.commands.explain_process import ProcessError
from mkv_ascend.commands.explain_speculation import WITHOUT_LAYERS, Speculation
from mkv_ascend.commands.explain_stock import ask_vllm
from mkv_ascend.layout.demand import Request
from mkv_ascend.layout.grouping import GroupingOptions
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.report import OtherGrouping
from mkv_ascend.layout.report_text import count

__all__ = ["find"]

WITH_MODEL = frozenset({"draft_model", "eagle", "eagle3"})
"""Methods whose draft is read like any model."""


def find(
    arguments: argparse.Namespace, speculation: Speculation | None, options: GroupingOptions
) -> Findings:
    """Layers, groups and plan. Raises NotFromNumbersError where only vLLM's classes can tell."""
    target = read_model(arguments.model)
    draft = _draft(speculation, target)
    tokens_per_proposal = speculation.tokens if speculation else 0
    layers = _layers(arguments.tensor_parallel_size, target, draft, speculation)
    tokens = arguments.max_model_len or target.number("max_position_embeddings")
    request = Request(tokens=tokens, tokens_per_step=1 + tokens_per_proposal)
    specs = explain_plan.specs_of(layers, tokens_per_proposal)
    planned = explain_plan.plan_layers(layers, specs, request, options)
    other, absent = _vllm(arguments.vllm_grouping, specs, request)
    models = [("target", _described(target, layers, Role.TARGET))]
    if draft is not None:
        models.append(("draft", _described(draft, layers, Role.DRAFT)))
    problem = state_problem(layers)
    return Findings(tuple(models), request, planned, other, absent, (problem,) if problem else ())


def _draft(speculation: Speculation | None, target: ModelConfig) -> ModelConfig | None:
    """The draft's config, None where nothing of a draft keeps a cache."""
    if speculation is None or speculation.method in WITHOUT_LAYERS:
        return None
    if speculation.method == "mtp":
        return read_model(speculation.model) if speculation.model else target
    if speculation.method not in WITH_MODEL:
        known = ", ".join(sorted(WITHOUT_LAYERS | WITH_MODEL | {"mtp"}))
        raise NotFromNumbersError(
            f"speculative method {speculation.method!r} cannot be explained by numbers alone; "
            f"known: {known}"
        )
    if speculation.model is None:
        raise ExplainError(
            f"speculative method {speculation.method} needs a draft: give --draft, or model in "
            "--speculative-config"
        )
    return read_model(speculation.model)


def _layers(
    ranks: int, target: ModelConfig, draft: ModelConfig | None, speculation: Speculation | None
) -> list[NamedLayer]:
    """The layers of both models on one rank, named by their number."""
    tokens = speculation.tokens if speculation else 0
    layers = [
        NamedLayer(f"target.layers.{index}", Role.TARGET, target.dtype, layer)
        for index, layer in enumerate(target.layers(ranks, tokens))
    ]
    if draft is None or speculation is None:
        return layers
    ranks = _draft_ranks(speculation, ranks)
    is_predictor = speculation.method == "mtp"
    found = draft.mtp_layers(ranks) if is_predictor else draft.layers(ranks, tokens)
    return layers + [
        NamedLayer(f"draft.layers.{index}", Role.DRAFT, draft.dtype, layer)
        for index, layer in enumerate(found)
    ]


def _draft_ranks(speculation: Speculation, ranks: int) -> int:
    asked = speculation.options.get("draft_tensor_parallel_size", ranks)
    if asked not in (1, ranks):
        raise ExplainError(
            f"draft_tensor_parallel_size is {asked!r}; vLLM takes 1 or the target's, {ranks}"
        )
    return int(asked)


def _vllm(
    wanted: bool, specs: dict[str, Any], request: Request
) -> tuple[OtherGrouping | None, str]:
    """vLLM's own grouping, or None and why there is none."""
    if not wanted:
        return None, "--no-vllm-grouping"
    try:
        return ask_vllm(specs, request), ""
    except ProcessError as error:
        return None, str(error)


def _described(model: ModelConfig, layers: Sequence[NamedLayer], role: Role) -> str:
    number = count(sum(named.role is role for named in layers), "layer")
    return f"{model.folder.resolve().name} ({model.model_type}, {number}, {model.dtype})"
