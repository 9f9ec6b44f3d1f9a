# SPDX-License-Identifier: Apache-2.0
"""Models that vLLM itself builds, on the meta device: for those whose config.json is not enough.

``vllm_building`` does it in a process of its own; here are the question and what came of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mkv_ascend import host_versions
from mkv_ascend.adapters.installed import installed_versions
from mkv_ascend.checks.config_file import ConfigFileError, read_config_file
from mkv_ascend.checks.model_layer import ExplainError
from mkv_ascend.checks.planning_inputs import Asked, Found
from mkv_ascend.commands.explain_process import ProcessError, ask_host
from mkv_ascend.commands.runner_option import VARIABLE
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.planning import PlanInputs
from mkv_ascend.layout.report import OtherGrouping
from mkv_ascend.layout.report_text import count
from mkv_ascend.layout.serialization import from_dict


def find(asked: Asked, runner: str = "v1", *, vllm_grouping: bool = False) -> Found:
    """What an engine with these fields would plan.

    Args:
        asked: the fields.
        runner: vLLM's model runner, whose configuration is made.
        vllm_grouping: ask for vLLM's own grouping, too.

    Raises:
        ExplainError: with the words of vLLM or vllm-ascend where they refuse the models.
    """
    question = {"engine": _plain(asked.engine), "vllm_grouping": vllm_grouping}
    _check_files(asked)
    try:
        answer = ask_host("explain.vllm_building", question, {VARIABLE: str(int(runner == "v2"))})
    except ProcessError as error:
        raise ExplainError(f"vLLM could not be asked to build the models: {error}") from error
    return read_answer(asked, answer)


def read_answer(asked: Asked, answer: Mapping[str, Any]) -> Found:
    """What the process answered (``vllm_building.build``)."""
    if "error" in answer:
        installed = " with ".join(
            f"{name} {version}" for name, version in installed_versions().items()
        )
        raise ExplainError(f"{installed} refuses this: {answer['error']}")
    if "unplanned" in answer:
        raise ExplainError(
            "these caches have no plan of mkv_ascend to be shown: an engine leaves them to "
            f"{host_versions.vllm_ascend()}, because {answer['unplanned']}. Its log says how many "
            "tokens they hold"
        )
    inputs = from_dict(PlanInputs, answer["inputs"])
    if not inputs.layers:
        raise ExplainError("no layer of these models keeps a KV cache")
    return Found(
        inputs,
        tuple(_models(asked, inputs, answer["dtype"])),
        tuple(dict.fromkeys([*answer["notes"], *_shared(answer["shared"])])),
        None if answer["vllm"] is None else OtherGrouping(**answer["vllm"]),
    )


def _plain(engine: Mapping[str, Any]) -> dict[str, Any]:
    """For JSON, and for a process that runs in a folder of its own."""
    found = {**engine, "model": os.path.abspath(engine["model"])}
    speculation = engine.get("speculative_config")
    if speculation is not None and speculation.get("model"):
        draft = os.path.abspath(speculation["model"])
        found["speculative_config"] = {**speculation, "model": draft}
    return found


def _check_files(asked: Asked) -> None:
    for model in (asked.model, (asked.speculative or {}).get("model")):
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


def _models(asked: Asked, inputs: PlanInputs, dtype: str) -> list[tuple[str, str]]:
    models = [("target", _described(asked.model, inputs, dtype, Role.TARGET))]
    if any(layer.layout.role is Role.DRAFT for layer in inputs.layers):
        draft = Path((asked.speculative or {}).get("model") or asked.model)
        models.append(("draft", _described(draft, inputs, dtype, Role.DRAFT)))
    return models


def _described(folder: Path, inputs: PlanInputs, dtype: str, role: Role) -> str:
    config = read_config_file(folder)
    number = count(sum(layer.layout.role is role for layer in inputs.layers), "layer")
    return f"{folder.resolve().name} ({config.get('model_type')}, {number}, {dtype})"
