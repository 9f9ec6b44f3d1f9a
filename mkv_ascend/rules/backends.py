# SPDX-License-Identifier: Apache-2.0
"""Backends of attention, as far as a model's configuration tells its layers.

Layers that are built are judged one by one, by name; here one request stands for all of a kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mkv_ascend.attention import selection
from mkv_ascend.attention.arguments import arguments_told_by
from mkv_ascend.attention.entry import LayerRequest
from mkv_ascend.attention.options import kind_of_layer
from mkv_ascend.attention.selection import SelectionError, SelectionOptions
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.model import ModelFacts
from mkv_ascend.rules.quantization import dtype
from mkv_ascend.rules.refusal import Refusal

INVARIANT = "VLLM_BATCH_INVARIANT"
FITTING = ". Backends that would fit: "
NAMED_BY_VLLM = "TRITON_ATTN"
"""What vLLM itself names for some models (Gemma 4); vllm-ascend takes it out again."""


def of_selection(error: SelectionError) -> Refusal:
    """A refusal of the selection, in three parts."""
    asked, in_parts, rest = str(error).partition(selection.POSSIBLE)
    if in_parts:
        possible, _, change = rest.partition(selection.CHANGE)
        code = "pattern" if selection.CONTRADICT in asked else "backend"
        return Refusal(code, asked, possible, change)
    asked, _, fitting = asked.partition(FITTING)
    change = "choose a backend that fits, or leave the choice to mkv_ascend"
    if INVARIANT in asked and not fitting:
        change = f"install what is missing, or leave {INVARIANT} out"
    lists = "what docs/attention_backends.md lists for this kind of layer"
    return Refusal("backend", asked, fitting or lists, change)


def names_of_backends(facts: Facts) -> Iterator[Refusal]:
    """vLLM's own options with a backend that no Ascend NPU has."""
    for role in Role:
        name = facts.selection.vllm(role)
        if name in (None, NAMED_BY_VLLM):
            continue
        try:
            selection.vllm_backend(name, role)
        except SelectionError as error:
            asked, _, usable = str(error).partition("; usable there: ")
            yield Refusal("backend-name", asked, usable, "choose one of these, or leave it out")


def backends(facts: Facts) -> Iterator[Refusal]:
    """A backend for each kind of layers; what patterns name is judged when layers have names."""
    options = without_patterns(facts)
    for model in filter(None, (facts.target, facts.draft)):
        if _is_unknown(options.vllm(model.role), model.role):
            continue
        for request in requests_of_kinds(facts, model):
            try:
                selection.select_backend(request, options, facts.environment)
            except SelectionError as error:
                # What layers with windows lack besides is mostly the same.
                yield of_selection(error)
                break


def without_patterns(facts: Facts) -> SelectionOptions:
    """The options that need no names of layers."""
    options = facts.selection
    return replace(options, attention=replace(options.attention, layers=()))


def _is_unknown(name: str | None, role: Role) -> bool:
    """Whether ``names_of_backends`` refuses this name."""
    try:
        return name is not None and selection.vllm_backend(name, role) is None
    except SelectionError:
        return True


def requests_of_kinds(facts: Facts, model: ModelFacts) -> Iterator[LayerRequest]:
    """Of all layers of a kind: those that attend to all tokens, and those with windows."""
    # A dtype that is refused already no backend would take.
    size, is_draft = model.head_size, model.role is Role.DRAFT
    if any(dtype(facts)) or size is None or model.is_compressed or model.attention_free:
        return
    if is_draft and (facts.speculation is None or not facts.speculation.has_cache):
        return
    cache, kind = None, model.kind
    if is_draft:
        cache = facts.options.kv_cache.draft_dtype
        kind = kind_of_layer(kind, facts.options.drafting.window, facts.max_model_len or None)
    request = LayerRequest(
        name=f"every attention layer of the {model.role}",
        role=model.role,
        kind=kind,
        layer_class=", ".join(model.architectures) or model.model_type,
        dtype=facts.dtype,
        head_size=size,
        kv_cache_dtype=cache or "auto",
        arguments=arguments_told_by(model.text),
    )
    yield request
    if kind is Kind.FULL_ATTENTION and model.has_windows:
        name = f"every layer of the {model.role} with a window"
        yield replace(request, name=name, kind=Kind.SLIDING_WINDOW)


CHECKS = (names_of_backends, backends)
