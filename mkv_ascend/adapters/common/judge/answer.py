# SPDX-License-Identifier: Apache-2.0
"""The judgement of one command, in a process of its own: from words to plain values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from pydantic_core import to_jsonable_python

from mkv_ascend import host_versions
from mkv_ascend.adapters.common.judge.front_check import BuildError, of_error, of_host, of_layout
from mkv_ascend.adapters.refusal import StartUpRefused, stand_for_command
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.layout.component import LayoutError
from mkv_ascend.layout.grouping import GroupingError
from mkv_ascend.layout.planning import ServingPlan, plan
from mkv_ascend.rules.facts import DeviceFacts, Facts
from mkv_ascend.rules.graphs import draft_graphs
from mkv_ascend.rules.kv_cache import Memory, known_blocks, request_over_device, weights_over_device
from mkv_ascend.rules.refusal import Refusal, RefusedError
from mkv_ascend.rules.verdict import notes

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.common.judge.building import Built, JudgingHost


def judge(question: Mapping[str, Any], host: JudgingHost) -> dict[str, Any]:
    """The answer of ``mkv-ascend check``, as its ``--json`` has it, and the inputs of the plan.

    ``question``: ``words`` behind ``vllm serve``, or ``engine``, fields of vLLM's ``EngineArgs``;
    ``device``, fields of ``DeviceFacts`` that differ from this process's; ``plan``, whether vLLM's
    own grouping is asked for, too; ``works``, whether what a step of the models reads is.
    """
    import vllm_ascend.ops  # noqa: F401  First of vllm_ascend, or its imports go in a circle.

    from mkv_ascend.adapters.common.judge import command, facts_of_config

    facts_of_config.judge_for(_device(question["device"], facts_of_config.devices()))
    command.look_at_classes_in_copies()
    try:
        make = command.configuration_of(question)
    except command.CommandError as error:
        return {"answer": "unreadable", "problem": str(error)}
    try:
        config, facts = _configured(make)
        return _answered(config, facts, host, question)
    except RefusedError as error:
        found = [asdict(refusal) for refusal in error.refusals]
        return {"answer": "refused", "refusals": found}


def _device(given: Mapping[str, Any], here: DeviceFacts) -> DeviceFacts:
    generation = DeviceGeneration(given["generation"] or here.generation)
    return DeviceFacts(
        count=given["count"] if given["count_is_known"] else here.count,
        memory_bytes=given["memory_bytes"] or here.memory_bytes,
        generation=generation,
        source=(given["source"] or here.source).format(generation=generation),
        extra_dtypes=here.extra_dtypes,
        modules=here.modules,
        batch_invariant=here.batch_invariant,
    )


def _configured(make: Callable[[], VllmConfig]) -> tuple[VllmConfig, Facts]:
    """vLLM's configuration and its facts. Raises RefusedError, with a host's words as well."""
    from mkv_ascend.adapters.common.judge.facts_of_config import facts_of

    stand_for_command()
    try:
        config = make()
    except RefusedError:
        raise
    except StartUpRefused as refused:
        if isinstance(refused.error, RefusedError):
            raise refused.error from None
        words = str(refused.error or refused).removeprefix("mkv_ascend: ")
        raise RefusedError([of_host(words)]) from None
    except SystemExit as ended:
        raise RefusedError([of_host(str(ended))]) from None
    except Exception as error:  # Whatever a host raises of what it does not serve.
        raise RefusedError([of_error(error)]) from None
    return config, facts_of(config)


def _answered(
    config: VllmConfig, facts: Facts, host: JudgingHost, question: Mapping[str, Any]
) -> dict[str, Any]:
    """What is served. Raises RefusedError for what only layers and memory tell."""
    from mkv_ascend.adapters.common.judge.building import Asked, build

    asked = Asked(question["plan"], question.get("works", False))
    left_out: tuple[str, ...] = ()
    try:
        try:
            built = build(config, host, asked)
        except BuildError as error:
            if error.refusals or not _leave_inputs_out(config):
                raise
            built = build(config, host, asked)
            left_out = ("the parts for images and sound are not counted: their files are not here",)
    except BuildError as error:
        if error.refusals:
            raise RefusedError(error.refusals) from None
        unplanned = f"{host_versions.vllm()} does not build this without memory: {error}"
        more = {"unplanned": unplanned, "inputs": None, "works": None, "untold": unplanned}
        return {**_served(facts, None, None), **more}
    stages = []
    found: list[Refusal] = []
    for one in built:
        memory = _memory(config, facts, one)
        planned = _planned(one, memory)
        fitted = None if planned is None else _fitted(config, memory, planned)
        found += _over_memory(facts, memory, fitted)
        stages.append((one, memory, planned, fitted))
    if found:
        raise RefusedError(dict.fromkeys(found))
    one, memory, planned, fitted = min(
        stages, key=lambda stage: _requests(stage[1], stage[2]) or 0.0
    )
    answer = _served(facts, memory, fitted)
    answer["notes"] += left_out
    if len(stages) > 1:
        answer["notes"] += (f"memory is that of the tightest of {len(stages)} pipeline stages",)
    return {
        **answer,
        "unplanned": one.unplanned,
        "inputs": None if planned is None else to_jsonable_python(planned.inputs),
        "shared": one.shared,
        "vllm_grouping": None if one.other is None else asdict(one.other),
        "works": to_jsonable_python(one.works),
        "untold": one.untold or one.unplanned,
    }


def _leave_inputs_out(config: VllmConfig) -> bool:
    """Build the language model alone: processors of inputs need more files than config.json."""
    inputs = config.model_config.multimodal_config
    if inputs is None or inputs.language_model_only:
        return False
    inputs.language_model_only = True
    return True


def _planned(built: Built, memory: Memory) -> ServingPlan | None:
    """Raises RefusedError where nothing can be planned."""
    if built.inputs is None:
        return None
    try:
        return plan(replace(built.inputs, memory_bytes=memory.expected))
    except (GroupingError, LayoutError) as error:
        raise RefusedError([of_layout(error)]) from None


def _memory(config: VllmConfig, facts: Facts, built: Built) -> Memory:
    from mkv_ascend.adapters.common.judge.model_work import activation_bytes

    cache, (target, draft) = config.cache_config, built.weights
    return Memory(
        device=facts.device.memory_bytes,
        share=cache.gpu_memory_utilization,
        given=cache.kv_cache_memory_bytes or 0,
        blocks=cache.num_gpu_blocks_override or 0,
        target=target,
        draft=draft,
        activations=activation_bytes(config),
        ranks=facts.tensor_parallel * facts.pipeline_parallel,
    )


def _over_memory(facts: Facts, memory: Memory, planned: ServingPlan | None) -> Iterator[Refusal]:
    """Weights, or one request, that a device cannot hold, and patterns that match no layer."""
    from mkv_ascend.attention.selection import unmatched_patterns

    heavy = list(weights_over_device(memory))
    yield from heavy
    if planned is None:
        return
    if not heavy:
        yield from request_over_device(memory, planned)
    names = [layer.layout.layer for layer in planned.inputs.layers]
    for message in unmatched_patterns(facts.selection, names):
        asked, _, hint = message.partition("; ")
        change = "correct the pattern: it must match the whole name of a layer, as "
        yield Refusal("pattern", asked, hint, f"{change}mkv-ascend check --plan shows them")


def _fitted(config: VllmConfig, memory: Memory, planned: ServingPlan) -> ServingPlan:
    """The plan, for shorter requests where vLLM may shorten them and memory needs it."""
    known = known_blocks(memory, planned)
    asked = getattr(config.model_config, "original_max_model_len", None)
    if known is None or asked != -1:
        return planned
    return planned.shortened(known[0]) or planned


def _requests(memory: Memory, planned: ServingPlan | None) -> float | None:
    """Requests of full length at once; None where that is not known."""
    if planned is None:
        return None
    if memory.blocks:
        return round(planned.max_concurrency(memory.blocks), 2)
    if memory.expected is None:
        return None
    return round(planned.max_concurrency(planned.num_blocks(memory.expected)), 2)


def _served(facts: Facts, memory: Memory | None, planned: ServingPlan | None) -> dict[str, Any]:
    """What is answered of facts; ``memory`` and ``planned``: None where they are not known."""
    speculation = facts.speculation
    length = facts.max_model_len if planned is None else planned.inputs.request.tokens
    backends = _backends(planned)
    models = {"target": facts.target.name}
    if facts.draft is not None:
        models["draft"] = facts.draft.name
    answer: dict[str, Any] = {
        "answer": "served",
        "models": models,
        "method": facts.method,
        "tokens_per_proposal": 0 if speculation is None else speculation.tokens,
        "max_model_len": length,
        "target_graphs": facts.graph_mode,
        "async_scheduling": facts.async_scheduling,
        "draft_graphs": draft_graphs(facts, backends.get("draft", {})),
        "backends": backends,
        "groups": _groups(planned),
        "weight_bytes": None if memory is None else memory.weights,
        "draft_weight_bytes": None if memory is None else memory.draft,
        "activation_bytes": None if memory is None else memory.activations,
        "notes": (facts.device.source, *notes(facts, length)),
        "requests": None if memory is None else _requests(memory, planned),
    }
    for name in ("bytes_per_block", "request_bytes", "cache_bytes", "basis", "blocks"):
        answer[name] = None
    if planned is not None and memory is not None:
        block = planned.plan.bytes_per_block
        cache = memory.blocks * block if memory.blocks else memory.expected
        answer |= {
            "bytes_per_block": block,
            "request_bytes": sum(planned.admission_pages) * block,
            "cache_bytes": cache,
            "basis": "--num-gpu-blocks-override" if memory.blocks else memory.basis,
            "blocks": memory.blocks or (None if cache is None else planned.num_blocks(cache)),
        }
    return answer


def _backends(planned: ServingPlan | None) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = {}
    for layer in planned.inputs.layers if planned is not None else ():
        found.setdefault(layer.layout.role.value, Counter())[layer.backend] += 1
    return {role: dict(counts) for role, counts in found.items()}


def _groups(planned: ServingPlan | None) -> list[dict[str, int]]:
    if planned is None:
        return []
    roles = {layer.layout.layer: layer.layout.role.value for layer in planned.inputs.layers}
    return [
        {
            "target_layers": sum(roles[name] == "target" for name in group.layers),
            "draft_layers": sum(roles[name] == "draft" for name in group.layers),
            "block_size": group.block_size,
        }
        for group in planned.grouping.groups
    ]
