# SPDX-License-Identifier: Apache-2.0
"""Refuse a choice of backends before any worker starts, where the configuration already tells.

Each layer is judged for itself when it is built. That is in a worker process, after seconds of
start-up and behind two tracebacks of vLLM. What a model's configuration says of all its layers is
judged here as well, in the process that the user started.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.vllm_ascend_0_23.attention import selection_inputs
from mkv_ascend.adapters.vllm_ascend_0_23.early_checks.chunk_refusal import refuse_chunks
from mkv_ascend.adapters.vllm_ascend_0_23.options import options_of
from mkv_ascend.attention.request import LayerRequest
from mkv_ascend.attention.selection import SelectionError, select_backend
from mkv_ascend.layout.kind import Kind, Role

if TYPE_CHECKING:
    from vllm.config import ModelConfig, SpeculativeConfig, VllmConfig


logger = get_logger(__name__)


def check_models(config: VllmConfig) -> None:
    """Select a backend for the kind of layer that the target, and the draft, are known to have.

    Where ``attention.layers`` is given nothing is judged here: its patterns need the layers' names,
    which are only known once the model is built.

    Raises:
        SelectionError: none fits, or not the one asked for.
    """
    speculative = config.speculative_config
    has_draft = speculative is not None and speculative.draft_model_config is not None
    draft_dtype = options_of(config).kv_cache.draft_dtype
    if draft_dtype is not None and not (has_draft and _has_layers(speculative)):
        raise SelectionError(
            f"kv_cache.draft_dtype is {draft_dtype!r}, but there is no draft with a KV cache: give "
            "--speculative-config a draft, or leave the option out"
        )
    refuse_chunks(config.model_config)
    if has_draft:
        refuse_chunks(speculative.draft_model_config)
        _check_experts(config)
        _check_ranks(config)
        _check_recurrent(config)
    if selection_inputs.options(config, Role.TARGET).attention.layers:
        return
    environment = selection_inputs.environment(config)
    target = _request(config.model_config, Role.TARGET)
    if target is not None:
        select_backend(target, selection_inputs.options(config, Role.TARGET), environment)
    if not has_draft:
        return
    draft = _request(speculative.draft_model_config, Role.DRAFT)
    if draft is not None:
        draft = replace(draft, kv_cache_dtype=draft_dtype or "auto")
        asked = getattr(speculative.attention_backend, "name", None)
        options = replace(
            selection_inputs.options(config, Role.TARGET), vllm_target=None, vllm_draft=asked
        )
        select_backend(draft, options, environment)


def _has_layers(speculative: SpeculativeConfig) -> bool:
    """Whether the method drafts with a model that has a KV cache."""
    return speculative.use_eagle() or speculative.uses_draft_model()


def _check_experts(config: VllmConfig) -> None:
    """vllm-ascend's sequence parallelism gathers tokens for experts as the target's layers need it.

    Raises:
        SelectionError: it is on, the draft has experts and the target has none.
    """
    # Not with this module: it needs torch.distributed.
    from vllm_ascend.utils import enable_sp

    from mkv_ascend.adapters.vllm_ascend_0_23.patches.expert_groups import only_draft_has_experts

    if only_draft_has_experts(config) and enable_sp(config):
        draft = config.speculative_config.draft_model_config
        raise SelectionError(
            f"sequence parallelism (enable_flashcomm1) is on, and the draft {draft.model} has "
            f"{draft.get_num_experts()} experts where the target {config.model_config.model} has "
            "none: vllm-ascend 0.23.0 takes sequence parallelism with experts for expert "
            "parallelism, which vLLM refuses with such a target. Leave enable_flashcomm1 out, or "
            "choose a draft without experts"
        )


def _check_ranks(config: VllmConfig) -> None:
    """Refuse a draft where target and draft cannot be spread over these ranks.

    Raises:
        SelectionError: a pipeline of several stages, or a draft model with another
            tensor-parallel size. Heads on hidden states may be whole on every rank: vllm-ascend
            gives them a group of their own.
    """
    speculative, stages = config.speculative_config, config.parallel_config.pipeline_parallel_size
    # A node that only prefills samples one token per request and verifies nothing.
    only_prefills = getattr(config.kv_transfer_config, "kv_role", None) == "kv_producer"
    if stages > 1 and _has_layers(speculative) and not only_prefills:
        raise SelectionError(
            f"pipeline_parallel_size is {stages} and there is a draft ({speculative.method}): "
            "vLLM's models take a draft for a stage of the target's pipeline, its engine hands out "
            "draft tokens before it knows the token sampled, and the first stages are never told "
            "which were accepted, so the target's tokens would be wrong. Spread the target by "
            "tensor parallelism instead, or leave the draft out"
        )
    if not speculative.uses_draft_model():
        return
    draft = speculative.draft_parallel_config.tensor_parallel_size
    target = speculative.target_parallel_config.tensor_parallel_size
    if draft != target:
        raise SelectionError(
            f"draft_tensor_parallel_size is {draft} and the target's tensor-parallel size "
            f"{target}: vLLM 0.23.0 runs a draft model on all ranks of its target. Leave "
            "draft_tensor_parallel_size out (with method eagle or eagle3 it may be 1)"
        )


def _check_recurrent(config: VllmConfig) -> None:
    """Refuse options that a draft with recurrent layers cannot be combined with; take no hits.

    Raises:
        SelectionError: naming the option.
    """
    # Not with this module, which the platform imports: it needs no model code.
    from mkv_ascend.adapters.vllm_ascend_0_23.drafting.recurrent_options import (
        has_recurrent_layers,
        refuse_options_of_recurrent_drafts,
        switch_prefix_hits_off,
    )

    if not has_recurrent_layers(config):
        return
    if cost := switch_prefix_hits_off(config):
        logger.warning(cost)
    try:
        refuse_options_of_recurrent_drafts(config)
    except NotImplementedError as error:
        raise SelectionError(str(error)) from None


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
    }
    if not model.use_mla:
        return LayerRequest(kind=Kind.FULL_ATTENTION, head_size=model.get_head_size(), **common)
    kind = Kind.SPARSE_MLA if hasattr(text_config, "index_topk") else Kind.MLA
    head_size = text_config.kv_lora_rank + text_config.qk_rope_head_dim
    return LayerRequest(kind=kind, head_size=head_size, **common)
