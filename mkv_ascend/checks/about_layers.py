# SPDX-License-Identifier: Apache-2.0
"""What of layers, backends and memory cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mkv_ascend.attention import selection
from mkv_ascend.attention.selection import SelectionError
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.layer_requests import (
    environment_of,
    options_of,
    requests_of_kinds,
    requests_of_layers,
)
from mkv_ascend.checks.refusal import Refusal
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.planning import ServingPlan

__all__ = [
    "CHECKS",
    "fitted_plan",
    "known_blocks",
    "memory_for_caches",
    "of_selection",
    "share_of_memory",
]

INVARIANT = "VLLM_BATCH_INVARIANT"
FITTING = ". Backends that would fit: "
DEFAULT_UTILIZATION = 0.92
"""Share of a device's memory that vLLM 0.23.0 takes unless it is told otherwise."""


def of_selection(error: SelectionError) -> Refusal:
    """A refusal of the selection, in three parts."""
    text = str(error)
    if text.endswith(selection.USE_THE_NAME):
        return Refusal(
            "pattern",
            text.removesuffix(selection.USE_THE_NAME),
            "patterns of which one is more specific, by docs/configuration.md",
            "make one more specific, or use the layer's name",
        )
    if selection.CHANGE in text:
        asked, _, rest = text.partition(selection.POSSIBLE)
        possible, _, change = rest.partition(selection.CHANGE)
        return Refusal("backend", asked, possible, change)
    asked, found, fitting = text.partition(FITTING)
    if INVARIANT in text and not found:
        return Refusal(
            "backend",
            asked.removesuffix("."),
            "a backend whose results do not depend on the batch: docs/attention_backends.md says "
            "what each needs for that",
            f"install what is missing, or leave {INVARIANT} out",
        )
    return Refusal(
        "backend",
        asked,
        fitting if found else "what docs/attention_backends.md lists for this kind of layer",
        "choose a backend that fits, or leave the choice to mkv_ascend",
    )


def backends(facts: ServeFacts) -> Iterator[Refusal]:
    """A backend for each layer that is known by its name, or for each kind of layers."""
    if facts.layers:
        try:
            selection.select_backends(
                requests_of_layers(facts), options_of(facts), environment_of(facts)
            )
        except SelectionError as error:
            yield of_selection(error)
        return
    yield from _backends_of_kinds(facts)


def _backends_of_kinds(facts: ServeFacts) -> Iterator[Refusal]:
    options = options_of(facts)
    if facts.options.attention.layers and facts.inputs is None:
        # Patterns need the names of layers, which are not known.
        options = replace(options, attention=replace(facts.options.attention, layers=()))
    for model in filter(None, (facts.target, facts.draft)):
        if _is_unknown(options.vllm(model.role), model.role):
            continue
        for request in requests_of_kinds(facts, model):
            try:
                selection.select_backend(request, options, environment_of(facts))
            except SelectionError as error:
                # What layers with windows lack besides is mostly the same.
                yield of_selection(error)
                break


def _is_unknown(name: str | None, role: Role) -> bool:
    """Whether ``names_of_backends`` refuses this name."""
    try:
        return name is not None and selection.vllm_backend(name, role) is None
    except SelectionError:
        return True


def names_of_backends(facts: ServeFacts) -> Iterator[Refusal]:
    """vLLM's own options with a backend that no Ascend NPU has."""
    options = options_of(facts)
    for role in Role:
        name = options.vllm(role)
        if name is None:
            continue
        try:
            selection.vllm_backend(name, role)
        except SelectionError as error:
            asked, _, usable = str(error).partition("; usable there: ")
            yield Refusal("backend-name", asked, usable, "choose one of these, or leave it out")


def patterns(facts: ServeFacts) -> Iterator[Refusal]:
    """Patterns of ``attention.layers`` that match no layer of either model."""
    if facts.inputs is not None:
        names = [layer.layout.layer for layer in facts.inputs.layers]
    elif facts.layers:
        names = [named.name for named in facts.layers]
    else:
        return
    for message in selection.unmatched_patterns(options_of(facts), names):
        asked, _, hint = message.partition("; ")
        yield Refusal(
            "pattern",
            asked,
            hint,
            "correct the pattern: it must match the whole name of a layer, as "
            "mkv-ascend explain shows them",
        )


def share_of_memory(facts: ServeFacts) -> float:
    """The share of a device's memory that weights, activations and KV caches take together."""
    return float(facts.engine.get("gpu_memory_utilization") or DEFAULT_UTILIZATION)


def memory_for_caches(facts: ServeFacts) -> tuple[int, str] | None:
    """Bytes for KV caches on a device, or at most so many, and how that is known.

    What weights on disk take is known, what activations take is not: without
    ``--kv-cache-memory-bytes`` the engine will have less than this.
    """
    exact = facts.whole("kv_cache_memory_bytes", 0)
    if exact > 0:
        return exact, "--kv-cache-memory-bytes"
    if facts.device.memory_bytes is None:
        return None
    share = share_of_memory(facts)
    ranks = max(1, facts.tensor_parallel * facts.whole("pipeline_parallel_size", 1))
    left = int(facts.device.memory_bytes * share) - facts.weight_bytes // ranks
    return max(left, 0), "at most: the device's share less the weights; activations take more"


def known_blocks(facts: ServeFacts) -> tuple[int, str] | None:
    """Blocks that there will be, or at most so many, and how that is known."""
    override = facts.whole("num_gpu_blocks_override", 0)
    if override > 0:
        return override, f"--num-gpu-blocks-override gives {override}"
    available = memory_for_caches(facts)
    if facts.plan is None or available is None:
        return None
    blocks = facts.plan.num_blocks(available[0])
    return blocks, f"{available[0] / 2**20:.1f} MiB ({available[1]}) hold {blocks}"


def fitted_plan(facts: ServeFacts) -> ServingPlan | None:
    """The plan, for shorter requests where vLLM may shorten them and memory needs it."""
    known = known_blocks(facts)
    if facts.plan is None or known is None or not facts.fits_length_to_memory:
        return facts.plan
    return facts.plan.shortened(known[0]) or facts.plan


def memory(facts: ServeFacts) -> Iterator[Refusal]:
    """Memory that cannot hold one request: the scheduler would wait for blocks for ever."""
    plan, known = fitted_plan(facts), known_blocks(facts)
    if plan is None or known is None or plan.refusal(known[0]) is None:
        return
    needed = sum(plan.admission_blocks) + 1
    tokens = plan.inputs.request.tokens
    block = plan.plan.bytes_per_block
    yield Refusal(
        "memory",
        f"one request of {tokens} tokens needs {needed} blocks of {block} bytes "
        f"({needed * block / 2**20:.1f} MiB) in {len(plan.grouping.groups)} KV groups, and "
        f"{known[1]}",
        f"shorter requests (--max-model-len), or {needed * block / 2**20:.1f} MiB or more for KV "
        "caches",
        "lower --max-model-len, or give more memory (--kv-cache-memory-bytes, "
        "--gpu-memory-utilization, more ranks)",
    )


CHECKS = (names_of_backends, backends, patterns, memory)
