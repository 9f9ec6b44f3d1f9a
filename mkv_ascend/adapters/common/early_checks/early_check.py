# SPDX-License-Identifier: Apache-2.0
"""Refuse a choice of backends before any worker starts, where the configuration already tells.

Each layer is judged for itself when it is built. That is in a worker process, after seconds of
start-up and behind two tracebacks of vLLM. What a model's configuration says of all its layers is
judged here as well, in the process that the user started.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.common.attention import selection_inputs
from mkv_ascend.adapters.common.drafting.recurrent_options import (
    has_recurrent_layers,
    switch_prefix_hits_off,
)
from mkv_ascend.adapters.common.early_checks.facts_of_config import (
    engine_of_layers,
    facts_of,
)
from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.attention import catalog
from mkv_ascend.attention.arguments import arguments_told_by
from mkv_ascend.attention.draft_window import kind_of_layer
from mkv_ascend.attention.request import LayerRequest
from mkv_ascend.attention.selection import SelectionError, select_backend
from mkv_ascend.checks import about_compressed, about_draft, about_formats
from mkv_ascend.checks.about_shares import is_replicated
from mkv_ascend.checks.chunked_attention import chunks
from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.gathering import layers_told
from mkv_ascend.checks.host_rules import HostRules
from mkv_ascend.checks.model import has_windows
from mkv_ascend.checks.refusal import text_of
from mkv_ascend.layout.kind import Kind, Role

if TYPE_CHECKING:
    from vllm.config import ModelConfig, VllmConfig


logger = get_logger(__name__)

JUDGED_BY_VLLM = (about_draft.vocabulary, about_draft.own_predictor)
"""What vLLM refuses itself when it makes a configuration. ``explain`` plans such pairs with a note,
and some families' classes in vLLM count no layers of a predictor."""


def check_models(config: VllmConfig, rules: HostRules | None = None) -> None:
    """Select a backend for the kind of layer that the target, and the draft, are known to have.

    Where ``attention.layers`` is given nothing is judged here: its patterns need the layers' names,
    which are only known once the model is built.

    Args:
        config: vLLM's, of the whole engine.
        rules: what states of drafts this host keeps; without them, those that all hosts keep.

    Raises:
        SelectionError: none fits, or not the one asked for.
    """
    speculative = config.speculative_config
    has_draft = speculative is not None and speculative.draft_model_config is not None
    _check_draft(config, rules)
    if selection_inputs.options(config, Role.TARGET).attention.layers:
        return
    environment = selection_inputs.environment(config)
    target = _request(config.model_config, Role.TARGET)
    for request in _of_all_kinds(target, config.model_config):
        select_backend(request, selection_inputs.options(config, Role.TARGET), environment)
    if not has_draft:
        return
    draft = _request(speculative.draft_model_config, Role.DRAFT)
    if draft is not None:
        asked, longest = selection_inputs.draft_window(config)
        draft = replace(
            draft,
            kind=kind_of_layer(draft.kind, asked, longest),
            kv_cache_dtype=options_of(config).kv_cache.draft_dtype or "auto",
        )
        backend = getattr(speculative.attention_backend, "name", None)
        options = replace(
            selection_inputs.options(config, Role.TARGET), vllm_target=None, vllm_draft=backend
        )
        for request in _of_all_kinds(draft, speculative.draft_model_config):
            select_backend(request, options, environment)


def _of_all_kinds(request: LayerRequest | None, model: ModelConfig) -> Iterator[LayerRequest]:
    """The request, and that of layers with windows where the model has some beside it."""
    if request is None:
        return
    yield request
    if request.kind is Kind.FULL_ATTENTION and has_windows(model.hf_text_config.to_dict()):
        name = f"every layer of the {request.role} with a window"
        yield replace(request, name=name, kind=Kind.SLIDING_WINDOW)


def check_compressed(config: VllmConfig, rules: HostRules) -> None:
    """Refuse what ``mkv-ascend check`` refuses of DeepSeek-V4 and of 8 bits on this host.

    Raises:
        SelectionError: with every refusal.
    """
    facts = facts_of(config, selection_inputs.environment(config).device_generation)
    facts = replace(facts, rules=rules)
    checks = (*about_compressed.CHECKS, *about_formats.CHECKS)
    if refusals := [refusal for check in checks for refusal in check(facts)]:
        raise SelectionError(text_of(refusals))


def _check_draft(config: VllmConfig, rules: HostRules | None) -> None:
    """Refuse what ``mkv-ascend check`` refuses of chunks and drafts; a recurrent one may take no
    hits.

    Raises:
        SelectionError: with every refusal.
    """
    facts = _facts(config, rules)
    checks = [check for check in about_draft.CHECKS if check not in JUDGED_BY_VLLM]
    refusals = [refusal for check in (chunks, *checks) for refusal in check(facts)]
    if refusals:
        raise SelectionError(text_of(refusals))
    if not has_recurrent_layers(config):
        return
    if (cost := switch_prefix_hits_off(config, facts)) is not None:
        logger.warning(cost)


def _facts(config: VllmConfig, rules: HostRules | None) -> ServeFacts:
    """The facts of drafts, with what backends can rely on in this process."""
    environment = selection_inputs.environment(config)
    facts = facts_of(config, environment.device_generation)
    device = replace(
        facts.device,
        extra_dtypes=environment.extra_dtypes,
        modules=catalog.installed_modules(),
        batch_invariant=environment.batch_invariant,
    )
    facts = replace(facts, device=device, rules=rules)
    # Only then names of layers are asked for: reading them takes a moment.
    if rules is None or not (facts.options.attention.layers and is_replicated(facts)):
        return facts
    return replace(facts, layers=layers_told(engine_of_layers(config), rules))


def _request(model: ModelConfig, role: Role) -> LayerRequest | None:
    """What every attention layer of a model needs; None where the configuration does not tell."""
    text_config: Any = model.hf_text_config
    if model.is_attention_free or hasattr(text_config, "compress_ratios"):
        return None
    common: dict[str, Any] = {
        "name": f"every attention layer of the {role}",
        "role": role,
        "layer_class": ", ".join(model.architectures),
        "dtype": str(model.dtype).removeprefix("torch."),
        "arguments": arguments_told_by(text_config.to_dict()),
    }
    if not model.use_mla:
        return LayerRequest(kind=Kind.FULL_ATTENTION, head_size=model.get_head_size(), **common)
    kind = Kind.SPARSE_MLA if hasattr(text_config, "index_topk") else Kind.MLA
    head_size = text_config.kv_lora_rank + text_config.qk_rope_head_dim
    return LayerRequest(kind=kind, head_size=head_size, **common)
