# SPDX-License-Identifier: Apache-2.0
"""From the options of a command to the facts that checks judge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mkv_ascend.attention.selection import SelectionError
from mkv_ascend.checks import from_config, named_layers
from mkv_ascend.checks.about_layers import of_selection
from mkv_ascend.checks.config_file import ConfigFileError
from mkv_ascend.checks.facts import DeviceFacts, ServeFacts
from mkv_ascend.checks.host_rules import HostRules
from mkv_ascend.checks.layer_requests import environment_of
from mkv_ascend.checks.model import read_model_facts
from mkv_ascend.checks.model_layer import ExplainError, NamedLayer, NotFromNumbersError
from mkv_ascend.checks.overridden import overridden
from mkv_ascend.checks.planning_inputs import Asked
from mkv_ascend.checks.refusal import Refusal, RefusedError, refused
from mkv_ascend.checks.speculation import read_speculation, with_short_options
from mkv_ascend.config import ConfigError, MkvConfig, parse_config
from mkv_ascend.layout.component import LayoutError
from mkv_ascend.layout.grouping import GroupingError
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.planning import plan

__all__ = ["gather", "layers_told", "with_plan"]


def gather(engine: Mapping[str, Any], device: DeviceFacts, rules: HostRules) -> ServeFacts:
    """Options and config.json files, read; nothing is planned yet.

    Args:
        engine: the options that were given, by the names of vLLM's ``EngineArgs``.
        device: what the command would run on.
        rules: of the host that would run it.

    Raises:
        RefusedError: what is given cannot be read.
    """
    options = _options(engine)
    name = str(engine.get("model") or "")
    try:
        in_file = read_model_facts(Role.TARGET, name)
        target = overridden(in_file, engine)
    except ConfigFileError as error:
        raise refused(
            "model-config",
            f"the target's config.json: {error}",
            "a directory with the config.json of a published model",
            "correct the file, or the name of the model",
        ) from None
    engine = with_short_options(engine)
    speculation, draft = read_speculation(engine, in_file)
    folders = {model.name for model in (target, draft) if model is not None}
    weights = sum(_weight_bytes(Path(folder)) for folder in folders)
    facts = ServeFacts(
        engine, options, target, device, speculation, draft, weight_bytes=weights, rules=rules
    )
    _refuse_unread_code(facts, rules)
    if facts.for_training.get("enable_batch_invariant"):
        # vllm-ascend sets VLLM_BATCH_INVARIANT, before backends are chosen.
        facts = replace(facts, device=replace(device, batch_invariant=True))
    return facts


def _options(engine: Mapping[str, Any]) -> MkvConfig:
    additional = engine.get("additional_config")
    if additional is not None and not isinstance(additional, Mapping):
        raise refused(
            "additional-config",
            f"--additional-config is {str(additional)[:200]!r}",
            "a JSON object",
            'write {"mkv_ascend": {...}}, in single quotation marks of the shell',
        )
    try:
        return parse_config(additional)
    except ConfigError as error:
        raise RefusedError([_of_problem(problem) for problem in error.problems]) from None


def _of_problem(problem: str) -> Refusal:
    """A problem of an option: what it is; what is allowed."""
    asked, _, allowed = problem.partition("; ")
    return Refusal(
        "options",
        f"--additional-config: {asked}",
        allowed.removeprefix("allowed: ") or "docs/configuration.md lists the options",
        "correct it, or leave it out",
    )


def _weight_bytes(folder: Path) -> int:
    """Bytes of the files of weights; 0 where there are none."""
    try:
        return sum(
            path.stat().st_size
            for path in folder.iterdir()
            if path.suffix in (".safetensors", ".bin") and path.is_file()
        )
    except OSError:
        return 0


def _for_layers(facts: ServeFacts) -> dict[str, Any]:
    """The options that decide on layers and groups."""
    engine = {k: v for k, v in facts.engine.items() if k != "num_gpu_blocks_override"}
    if facts.whole("max_model_len", -1) < 1:
        # -1 leaves it to the model, and to the memory that there will be.
        engine.pop("max_model_len", None)
    if facts.caches_have_the_models_dtype:
        engine.pop("kv_cache_dtype", None)
    return engine


def _with_method(facts: ServeFacts) -> dict[str, Any]:
    """The options that decide on layers, with the method that vLLM comes to."""
    engine = _for_layers(facts)
    if facts.speculation is not None:
        asked = {**facts.speculation.options, "method": facts.speculation.method}
        engine["speculative_config"] = asked
    return engine


def _groups_without_transfer(facts: ServeFacts, rules: HostRules) -> int | None:
    """KV groups of a command with KV transfer, which changes none; None where they are not told."""
    engine = {**facts.engine, "kv_transfer_config": None}
    if engine == facts.engine:
        return None
    try:
        asked = _for_layers(replace(facts, engine=engine))
        found = from_config.find(Asked(asked), rules, environment_of(facts))
        return len(plan(found.inputs).grouping.groups)
    except (NotFromNumbersError, SelectionError, GroupingError, LayoutError, ExplainError):
        return None


def layers_told(engine: Mapping[str, Any], rules: HostRules) -> tuple[NamedLayer, ...]:
    """The layers of both models by their names; none where numbers do not tell them.

    Args:
        engine: as for ``gather``.
    """
    try:
        return named_layers.layers_told(Asked(engine), rules)
    except (ExplainError, SelectionError):
        return ()


def _refuse_unread_code(facts: ServeFacts, rules: HostRules) -> None:
    """Configurations that are code, which vLLM runs where it is told to."""
    runs_code = facts.engine.get("trust_remote_code")
    for model in filter(None, (facts.target, facts.draft)):
        is_code = model.model_type in rules.configurations_as_code
        if is_code and not (runs_code and model.values.get("auto_map")):
            raise refused(
                "model-config",
                f"{model.name}: no configuration of type {model.model_type} is installed",
                "the code of one beside the weights (auto_map in config.json)",
                "add --trust-remote-code",
            )


def with_plan(facts: ServeFacts, rules: HostRules) -> tuple[ServeFacts, str]:
    """The facts with layers and plan; where they are not known, as they were, and why.

    Raises:
        RefusedError: no backend serves a layer, or nothing can be planned.
    """
    try:
        found = from_config.find(Asked(_for_layers(facts)), rules, environment_of(facts))
        return replace(facts, inputs=found.inputs, plan=plan(found.inputs)), ""
    except NotFromNumbersError as error:
        told = replace(
            facts,
            kept_block=error.kept_block,
            groups_beside_transfer=_groups_without_transfer(facts, rules),
            layers=layers_told(_with_method(facts), rules),
        )
        return told, str(error)
    except SelectionError as error:
        refusal = of_selection(error)
    except (GroupingError, LayoutError) as error:
        refusal = Refusal(
            "layout", str(error), "docs/configuration.md, layout", "change the options of layout"
        )
    except ExplainError as error:
        refusal = Refusal(
            "model-config", str(error), "a configuration that vLLM takes", "correct what is named"
        )
    raise RefusedError([refusal])
