# SPDX-License-Identifier: Apache-2.0
"""Models that vLLM itself builds, on the meta device: for those whose config.json is not enough.

``explain_building`` does it in a process of its own; here are the question and the plan.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkv_ascend.checks.config_file import ConfigFileError, read_config_file
from mkv_ascend.commands.explain_models import ExplainError
from mkv_ascend.commands.explain_plan import Findings, Planned
from mkv_ascend.commands.explain_process import ProcessError, ask
from mkv_ascend.commands.explain_speculation import Speculation
from mkv_ascend.layout.component import LayerLayout
from mkv_ascend.layout.demand import Holding, Request
from mkv_ascend.layout.fitting import fitted_groups, group_layouts
from mkv_ascend.layout.grouping import GroupingOptions
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.plan import make_plan
from mkv_ascend.layout.report import OtherGrouping
from mkv_ascend.layout.report_text import count
from mkv_ascend.layout.serialization import from_plain

__all__ = ["BuiltLayer", "BuiltModels", "build_models", "find"]


@dataclass(frozen=True)
class BuiltLayer:
    """What a layer keeps, by its spec. ``planned``: whether the engine plans it."""

    layout: LayerLayout
    holding: Holding
    backend: str
    planned: bool


@dataclass(frozen=True)
class BuiltModels:
    """Both models as an engine has them. ``vllm``: vLLM's own grouping, None if not asked for."""

    layers: tuple[BuiltLayer, ...]
    request: Request
    dtype: str
    notes: tuple[str, ...]
    vllm: OtherGrouping | None


def build_models(
    arguments: argparse.Namespace, speculative: Mapping[str, Any] | None
) -> BuiltModels:
    """What vLLM builds from these arguments; ``speculative``: as for ``vllm serve``.

    Raises ExplainError with the words of vLLM or vllm-ascend where they refuse the models.
    """
    question = {
        "model": str(arguments.model),
        "speculative": speculative,
        "ranks": arguments.tensor_parallel_size,
        "tokens": arguments.max_model_len,
        "kv_cache_dtype": arguments.kv_cache_dtype,
        "additional_config": arguments.additional_config or {},
        "vllm_grouping": arguments.vllm_grouping,
    }
    _check_files(question)
    try:
        found = ask("mkv_ascend.commands.explain_building", question, {})
    except ProcessError as error:
        raise ExplainError(f"vLLM could not be asked to build the models: {error}") from error
    if "error" in found:
        raise ExplainError(f"vLLM 0.23.0 with vllm-ascend 0.23.0 refuses this: {found['error']}")
    layers = tuple(
        BuiltLayer(
            from_plain(LayerLayout, layer["layout"]),
            from_plain(Holding, layer["holding"]),
            layer["backend"],
            layer["planned"],
        )
        for layer in found["layers"]
    )
    return BuiltModels(
        layers,
        Request(found["tokens"], found["tokens_per_step"]),
        found["dtype"],
        tuple(dict.fromkeys([*found["notes"], *_shared(found["shared"]), *_unplanned(layers)])),
        None if found["vllm"] is None else OtherGrouping(**found["vllm"]),
    )


def _check_files(question: Mapping[str, Any]) -> None:
    for model in (question["model"], (question["speculative"] or {}).get("model")):
        if model is None:
            continue
        try:
            read_config_file(Path(model))
        except ConfigFileError as error:
            raise ExplainError(str(error)) from error


def _shared(pairs: Sequence[tuple[str, str]]) -> list[str]:
    if not pairs:
        return []
    reader, owner = pairs[0]
    number = count(len(pairs), "layer")
    return [f"{number} without a cache of its own, such as {reader}, which reads {owner}'s"]


def _unplanned(layers: Sequence[BuiltLayer]) -> list[str]:
    names = [layer.layout.layer for layer in layers if not layer.planned]
    if not names:
        return []
    return [
        f"the engine of this release leaves models with layers such as {names[0]} to vLLM's "
        "grouping: for them this plan is what planning can do, not what is served"
    ]


def find(
    arguments: argparse.Namespace, speculation: Speculation | None, options: GroupingOptions
) -> Findings:
    """Layers, groups and plan, as ``explain_numbers.find`` without vLLM's classes."""
    built = build_models(arguments, speculation.for_vllm() if speculation else None)
    models = [("target", _described(arguments.model, built, Role.TARGET))]
    if any(layer.layout.role is Role.DRAFT for layer in built.layers):
        draft = speculation.model if speculation and speculation.model else arguments.model
        models.append(("draft", _described(draft, built, Role.DRAFT)))
    planned = _plan(built, options)
    absent = "" if built.vllm else "--no-vllm-grouping"
    return Findings(tuple(models), built.request, planned, built.vllm, absent, built.notes)


def _described(folder: Path, built: BuiltModels, role: Role) -> str:
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    number = count(sum(layer.layout.role is role for layer in built.layers), "layer")
    return f"{folder.resolve().name} ({config.get('model_type')}, {number}, {built.dtype})"


def _plan(built: BuiltModels, options: GroupingOptions) -> Planned:
    """Groups and the plan. Raises GroupingError or LayoutError where nothing can be planned."""
    layouts = {layer.layout.layer: layer.layout for layer in built.layers}
    if not layouts:
        raise ExplainError("no layer of these models keeps a KV cache")
    holdings = {layer.layout.layer: layer.holding for layer in built.layers}
    grouping = group_layouts(layouts, holdings, built.request, options)
    plan = make_plan(fitted_groups(layouts, grouping), block_outer=True)
    return Planned(grouping, plan, {layer.layout.layer: layer.backend for layer in built.layers})
