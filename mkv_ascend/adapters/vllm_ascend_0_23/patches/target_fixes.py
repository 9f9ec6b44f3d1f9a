# SPDX-License-Identifier: Apache-2.0
"""Families of models that vLLM 0.23.0 or vllm-ascend 0.23.0 builds, loads or captures wrongly."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.models.longcat_flash import FlashConfig
from vllm_ascend.ascend_forward_context import _EXTRA_CTX
from vllm_ascend.ops import rotary_embedding
from vllm_ascend.patch.worker.patch_deepseek_mtp import AscendDeepSeekMultiTokenPredictorLayer

from mkv_ascend.adapters.patching import patch, record, replaced, wrap

if TYPE_CHECKING:
    from vllm.config import VllmConfig


# The experts of K-EXAONE are given scores of experts.


@patch(
    name="router of K-EXAONE",
    target="vllm.model_executor.models.exaone_moe:ExaoneMoe.forward",
    reads=(
        "vllm.model_executor.models.exaone_moe:ExaoneMoe.__init__",
        "vllm_ascend.ops.fused_moe.fused_moe_0_23_0:AscendFusedMoE.is_internal_router",
    ),
)
def ask_the_router(original: Any, layer: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """``forward``, which asks the router where the experts do not."""
    if layer.experts.is_internal_router:
        found: torch.Tensor = original(layer, hidden_states)
        return found
    rows = hidden_states.view(-1, hidden_states.shape[-1])
    scores, _ = layer.gate(rows)
    chosen: torch.Tensor = layer.experts(hidden_states=rows, router_logits=scores)
    return chosen.view(hidden_states.shape)


# LongCat-Flash's drafting layer is built, and loaded from one checkpoint with its target.

Weights = Iterable[tuple[str, torch.Tensor]]
OUTPUT = "lm_head.weight"


@patch(
    name="LongCat-Flash beside its drafting layer",
    target=(
        "vllm.model_executor.models.longcat_flash:FlashModel.load_weights",
        "vllm.model_executor.models.longcat_flash_mtp:LongCatFlashMTP.__init__",
        "vllm.model_executor.models.longcat_flash_mtp:LongCatFlashMTP.load_weights",
    ),
    reads=(
        "vllm.model_executor.models.longcat_flash:FlashConfig.__init__",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._maybe_share_lm_head",
        "vllm.model_executor.models.longcat_flash_mtp:LongCatFlashMTP.compute_logits",
    ),
)
def skip_the_drafting_layer(original: Any, model: Any, weights: Weights) -> set[str]:
    """``FlashModel.load_weights`` without those of the drafting layer."""
    found: set[str] = original(
        model, ((name, value) for name, value in weights if not name.startswith("mtp."))
    )
    return found


@skip_the_drafting_layer.also(
    target="vllm.model_executor.models.longcat_flash_mtp:LongCatFlashMTP.__init__"
)
def _build_without_experts(original: Any, model: Any, *, vllm_config: Any, prefix: str) -> None:
    """``LongCatFlashMTP.__init__`` with the configuration that vLLM makes of the model's."""
    config = vllm_config.model_config
    with replaced(config, "hf_config", FlashConfig(**vars(config.hf_config))):
        original(model, vllm_config=vllm_config, prefix=prefix)


@skip_the_drafting_layer.also(
    target="vllm.model_executor.models.longcat_flash_mtp:LongCatFlashMTP.load_weights"
)
def _load_the_output_matrix(original: Any, model: Any, weights: Weights) -> set[str]:
    """``LongCatFlashMTP.load_weights``, and the matrix that the target has as well."""

    def others() -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in weights:
            if name == OUTPUT:
                parameter = model.lm_head.weight
                parameter.weight_loader(parameter, value)
            else:
                yield name, value

    found: set[str] = original(model, others())
    for layer in model.model.layers.values():
        # Where it is the target's, vllm-ascend puts the target's in its place.
        layer.shared_head = OutputMatrix(model)
    return found | {OUTPUT}


class OutputMatrix:
    """``head`` is the drafting model's output matrix, as layers of DeepSeek-V3 have their own."""

    def __init__(self, model: Any) -> None:
        self._model = model

    @property
    def head(self) -> Any:
        """The module."""
        return self._model.lm_head

    @head.setter
    def head(self, module: Any) -> None:
        self._model.lm_head = module


# A decoder layer may have two attentions, each with an index of its own.


@patch(
    name="two attentions of a layer",
    target="vllm_ascend.patch.worker.patch_deepseek_v2:extract_layer_index",
    reads=(
        "vllm.model_executor.models.longcat_flash:FlashDecoderLayer.__init__",
        "vllm_ascend.patch.worker.patch_deepseek_v2:_deepseek_v2_mla_attention_init",
    ),
)
def count_attentions(original: Any, name: str, *args: Any) -> int:
    """``extract_layer_index``, which counts attentions where a layer has two."""
    in_pairs = name.rpartition(".")[2].isdigit()
    found: int = original(name, *((2,) if in_pairs else args))
    return found


# openPangu's drafting layer runs as vLLM wrote it.


def install() -> None:
    """Apply the patches; that of openPangu leaves DeepSeek's layers alone. Idempotent."""
    for one in (
        spec_without_mla,
        count_attentions,
        skip_the_drafting_layer,
        ask_the_router,
        capture_as_if_with_sinks,
    ):
        one.apply()
    # Behind vllm-ascend's class, from which it derives where that was there first.
    from vllm.model_executor.models.openpangu_mtp import OpenPanguMultiTokenPredictorLayer

    for function in as_vllm_wrote_it.functions.values():
        wrap(OpenPanguMultiTokenPredictorLayer, "forward", function)


@patch(
    name="openPangu's drafting layer",
    target="vllm_ascend.patch.worker.patch_deepseek_mtp"
    ":AscendDeepSeekMultiTokenPredictorLayer.forward",
    reads=(
        "vllm_ascend.patch.worker.patch_deepseek_mtp"
        ":AscendDeepSeekMultiTokenPredictorLayer.__init__",
        "vllm.model_executor.models.openpangu_mtp:OpenPanguMultiTokenPredictorLayer.__init__",
        "vllm.model_executor.models.deepseek_mtp:DeepSeekMultiTokenPredictorLayer.forward",
        "vllm_ascend.spec_decode.llm_base_proposer"
        ":AscendSpecDecodeBaseProposer.model_returns_tuple",
    ),
)
def as_vllm_wrote_it(original: Any, layer: Any, *args: Any, **kwargs: Any) -> Any:
    """``forward`` of the class below vllm-ascend's, where ``layer`` is of that one."""
    if not isinstance(layer, AscendDeepSeekMultiTokenPredictorLayer):
        return original(layer, *args, **kwargs)
    return super(AscendDeepSeekMultiTokenPredictorLayer, layer).forward(*args, **kwargs)


# The spec of a dense layer that is drafted with beside an MLA target.
#
# vLLM 0.23.0's dense layer with a sliding window asks the configuration that it is given whether
# the model has MLA, and refuses. The configuration is the target's, also when the layer is the
# draft's.


@patch(
    name="dense layers beside MLA",
    target="vllm.model_executor.layers.attention.attention:Attention.get_kv_cache_spec",
)
def spec_without_mla(original: Any, layer: Any, vllm_config: VllmConfig) -> Any:
    """``Attention.get_kv_cache_spec`` for a model without MLA."""
    return original(layer, _without_mla(vllm_config))


def _without_mla(config: VllmConfig) -> VllmConfig:
    """A view of ``config`` in which the model has no MLA: an ``Attention`` layer never has it."""
    model = config.model_config
    if model is None or not model.use_mla:
        return config
    view, dense = copy.copy(config), copy.copy(model)
    dense.__class__ = _dense(type(model))
    view.model_config = dense
    return view


def _dense(model_class: type[Any]) -> type[Any]:
    return type(f"Dense{model_class.__name__}", (model_class,), {"use_mla": False})


# Rotary tables for latent attention that rotates nothing (Kimi-Linear).
#
# vllm-ascend's MLA (0.23.0, ``attention/mla_v1.py``) always rotates, by tables that a model's
# rotary modules record; a model without such modules ends in a TypeError. Cosine 1 and sine 0
# rotate by nothing. (The operators also put pairs of channels in another order, of queries and
# keys alike.)

TABLES = record(
    name="latent attention that rotates nothing",
    target=(
        "vllm_ascend.ops.rotary_embedding:_cos_cache",
        "vllm_ascend.ops.rotary_embedding:_sin_cache",
    ),
    reads=(
        "vllm_ascend.ops.rotary_embedding:_record_cos_and_sin_cache",
        "vllm_ascend.ops.rotary_embedding:get_cos_and_sin_mla",
    ),
)


def record_identity_rope(config: VllmConfig, device: torch.device) -> None:
    """Record such tables where the model has latent attention and no rotary module made any."""
    model = config.model_config
    if not model.use_mla or rotary_embedding._cos_cache is not None:
        return
    shape = (model.max_model_len, model.hf_text_config.qk_rope_head_dim)
    ones = torch.ones(shape, dtype=model.dtype, device=device)
    rotary_embedding._record_cos_and_sin_cache(ones, torch.zeros_like(ones))


# Full graphs of targets of which some layers have sinks and others have none, such as MiMo-V2.
#
# Another operator serves sinks, and its captured launches are noted with other operands.
# vllm-ascend 0.23.0 updates all launches of the target as those of one of the operators. The one
# for sinks computes without them as well, so all layers of such a target are captured with it.


@patch(
    name="sinks of some layers",
    target=(
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.full_graph_fia",
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.full_graph_fia_v2",
    ),
    reads=(
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.update_graph_params",
        "vllm_ascend.attention.utils:cache_graph_workspace",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.load_model",
    ),
)
def capture_as_if_with_sinks(original: Any, implementation: Any, *args: Any, **kwargs: Any) -> Any:
    """``full_graph_fia`` by the operator for sinks, where the target's other layers have some."""
    own = implementation.sinks is None and not implementation.enable_c8_quant
    if not own or _EXTRA_CTX.is_draft_model or not _EXTRA_CTX.sinks:
        return original(implementation, *args, **kwargs)
    return implementation.full_graph_fia_v2(*args, **kwargs)


@capture_as_if_with_sinks.also(
    target="vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.full_graph_fia_v2"
)
def _ask_for_its_own_workspace(original: Any, implementation: Any, *args: Any) -> Any:
    """``full_graph_fia_v2``, which keeps the largest workspace that a launch asks for."""
    with replaced(implementation, "_use_max_workspace_for_fia_graph", True):
        return original(implementation, *args)
