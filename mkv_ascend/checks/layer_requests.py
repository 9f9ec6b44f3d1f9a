# SPDX-License-Identifier: Apache-2.0
"""What the layers of a model need of their backends, as far as a command tells.

Where the numbers of both config.json files tell the layers, each is known by its name. Else one
request stands for all layers of a kind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from mkv_ascend.attention.arguments import arguments_told_by
from mkv_ascend.attention.draft_window import kind_of_layer
from mkv_ascend.attention.request import Environment, LayerRequest
from mkv_ascend.attention.selection import SelectionOptions
from mkv_ascend.checks import about_command
from mkv_ascend.checks.cached_layers import request_of
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.layout.kind import Kind, Role

__all__ = ["environment_of", "options_of", "requests_of_kinds", "requests_of_layers"]


def environment_of(facts: ServeFacts) -> Environment:
    """What backends can rely on where the command runs."""
    return Environment(
        device_generation=facts.device.generation,
        module_available=lambda name: name in facts.device.modules,
        batch_invariant=facts.device.batch_invariant,
        acl_graphs=facts.has_full_graphs,
        extra_dtypes=facts.device.extra_dtypes,
    )


def options_of(facts: ServeFacts) -> SelectionOptions:
    """Our options, and vLLM's own of both models."""
    speculation = facts.speculation
    draft_backend = None if speculation is None else speculation.options.get("attention_backend")
    asked = facts.engine.get("attention_config") or {}
    target_backend = facts.engine.get("attention_backend") or asked.get("backend")
    by_kind = asked.get("backend_per_kind") or {}
    return SelectionOptions(
        facts.options.attention,
        vllm_target=None if target_backend is None else str(target_backend),
        vllm_draft=None if draft_backend is None else str(draft_backend),
        vllm_by_kind=tuple((kind, getattr(x, "name", str(x))) for kind, x in by_kind.items()),
    )


def requests_of_layers(facts: ServeFacts) -> tuple[LayerRequest, ...]:
    """Of each attention layer by its name; none where numbers do not tell them."""
    told = {
        model.role: arguments_told_by(model.text)
        for model in filter(None, (facts.target, facts.draft))
    }
    requests = (request_of(named) for named in facts.layers if not named.layer.is_indexer)
    return tuple(
        replace(request, arguments=request.arguments | told.get(request.role, frozenset()))
        for request in requests
    )


def requests_of_kinds(facts: ServeFacts, model: ModelFacts) -> Iterator[LayerRequest]:
    """Of all layers of a kind: those that attend to all tokens, and those with windows."""
    if any(about_command.dtype(facts)):
        # Refused already, and no backend would take it.
        return
    size = model.head_size
    is_draft = model.role is Role.DRAFT
    if size is None or model.is_compressed or not model.has_attention:
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
    windows = model.has_windows and not facts.engine.get("disable_sliding_window")
    if kind is Kind.FULL_ATTENTION and windows:
        name = f"every layer of the {model.role} with a window"
        yield replace(request, name=name, kind=Kind.SLIDING_WINDOW)
