# SPDX-License-Identifier: Apache-2.0
"""What checks judge of a draft, from the configuration that vLLM has made.

``mkv-ascend check`` and the front process of ``vllm serve`` have it from options and config.json
files (``checks/gathering.py``). A program that calls ``vllm.LLM`` has neither; both are judged by
the one list in ``checks/about_draft.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks.about_draft_inputs import TEXT_ONLY
from mkv_ascend.checks.facts import SERVED_DSPARK, DeviceFacts, ServeFacts, SpeculationFacts
from mkv_ascend.checks.model import ModelFacts
from mkv_ascend.checks.weight_formats import read_weight_formats
from mkv_ascend.layout.kind import Role

if TYPE_CHECKING:
    from vllm.config import ModelConfig, SpeculativeConfig, VllmConfig

SHARING = ("prefill_context_parallel_size", "decode_context_parallel_size")
"""Numbers of ranks that share the keys of a sequence."""

SPREAD = (
    *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"),
    *SHARING,
)
"""Numbers of ranks that checks of drafts read."""

OWN_DRAFTS = ("draft_model", "eagle", "eagle3", "mtp", "dflash")
"""Methods whose draft is a model: for others vLLM names the target."""


OF_DRAFTS = ("draft_sample_method", "use_heterogeneous_vocab", "kv_cache_dtype")
"""Options of speculation that are only read."""


def facts_of(config: VllmConfig, generation: DeviceGeneration) -> ServeFacts:
    """The facts of drafts; of memory, lengths and layers nothing is said."""
    speculative = config.speculative_config
    draft = None
    if speculative is not None and _has_own_draft(speculative):
        draft = speculative.draft_model_config
    return ServeFacts(
        _engine(config),
        options_of(config),
        _model(config.model_config, Role.TARGET),
        DeviceFacts(None, None, generation, "the devices of this process"),
        None if speculative is None else _speculation(speculative, config.model_config),
        None if draft is None else _model(draft, Role.DRAFT),
        runner="v2" if getattr(config, "use_v2_model_runner", False) else "v1",
    )


def _has_own_draft(speculative: SpeculativeConfig) -> bool:
    if speculative.method == "dspark":
        return not SERVED_DSPARK.isdisjoint(speculative.draft_model_config.architectures)
    return speculative.method in OWN_DRAFTS


def _engine(config: VllmConfig) -> dict[str, Any]:
    """The options, by the names of ``EngineArgs``."""
    # Not with this module: it needs torch.distributed.
    from vllm_ascend.utils import enable_sp

    found = {name: getattr(config.parallel_config, name) for name in SPREAD}
    # Making a draft's configuration is judged, too, and it is told of no ranks that share keys.
    target = getattr(config.speculative_config, "target_parallel_config", None)
    found.update((name, getattr(target, name)) for name in SHARING if target is not None)
    transfer, cache, scheduler = (
        config.kv_transfer_config,
        config.cache_config,
        config.scheduler_config,
    )
    if transfer is not None:
        found["kv_transfer_config"] = {"kv_role": transfer.kv_role}
    given = config.additional_config or {}
    inputs = config.model_config.multimodal_config
    # vLLM 0.23.0 has no such option.
    by_kind = getattr(config.attention_config, "backend_per_kind", {})
    return {
        **found,
        "compilation_config": {"cudagraph_mode": _graph_mode(config)},
        "attention_config": {"backend_per_kind": by_kind},
        "enable_expert_parallel": config.parallel_config.enable_expert_parallel,
        "distributed_executor_backend": config.parallel_config.distributed_executor_backend,
        "kv_offloading_size": cache.kv_offloading_size,
        # vLLM switches them on by itself; beside states only who asks for them has them.
        "enable_prefix_caching": cache.enable_prefix_caching and cache.mamba_cache_mode != "none",
        "max_model_len": config.model_config.max_model_len,
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "logits_processors": config.model_config.logits_processors,
        # What was asked for wins over what config.json says.
        "quantization": config.model_config.quantization,
        TEXT_ONLY: inputs is not None and inputs.language_model_only,
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "max_num_seqs": scheduler.max_num_seqs,
        # vLLM sets it for some KV connectors, too, but only later.
        "disable_hybrid_kv_cache_manager": scheduler.disable_hybrid_kv_cache_manager,
        "additional_config": {
            "enable_flashcomm1": enable_sp(config),
            "enable_prefill_mc2": given.get("enable_prefill_mc2"),
            "eplb_config": None if _is_of_draft(config) else given.get("eplb_config"),
            "enable_reduce_sample": given.get("enable_reduce_sample", False),
            "draft_window_size": given.get("draft_window_size"),
            "dynamic_spec_config": given.get("dynamic_spec_config"),
            "finegrained_tp_config": given.get("finegrained_tp_config"),
        },
    }


def _is_of_draft(config: VllmConfig) -> bool:
    """Whether it is a draft model's own, of which experts stay where they are loaded."""
    speculative = config.speculative_config
    if speculative is None or speculative.method != "draft_model":
        return False
    return config.model_config is speculative.draft_model_config


def engine_of_layers(config: VllmConfig) -> dict[str, Any]:
    """What layers and their names depend on, by the names of ``EngineArgs``."""
    model, speculative = config.model_config, config.speculative_config
    found: dict[str, Any] = {
        "model": model.model,
        "tensor_parallel_size": config.parallel_config.tensor_parallel_size,
        "max_model_len": model.max_model_len,
        "dtype": str(model.dtype).removeprefix("torch."),
        "additional_config": config.additional_config,
    }
    if speculative is not None:
        found["speculative_config"] = {
            "method": speculative.method,
            "model": speculative.model,
            "num_speculative_tokens": speculative.num_speculative_tokens,
        }
    return found


def _speculation(speculative: SpeculativeConfig, target: ModelConfig) -> SpeculationFacts:
    ranks, draft = speculative.draft_parallel_config, speculative.draft_model_config
    options = {
        "method": speculative.method,
        "draft_tensor_parallel_size": None if ranks is None else ranks.tensor_parallel_size,
        "disable_padded_drafter_batch": speculative.disable_padded_drafter_batch,
        "parallel_drafting": speculative.parallel_drafting,
        "max_model_len": speculative.max_model_len,
        "model": None if speculative.model == target.model else speculative.model,
        "quantization": None if draft is None else draft.quantization,
        "attention_backend": getattr(speculative.attention_backend, "name", None),
        # vLLM 0.23.0 lacks the last two.
        **{name: getattr(speculative, name, None) for name in OF_DRAFTS},
    }
    return SpeculationFacts(
        str(speculative.method), speculative.num_speculative_tokens or 0, options
    )


def _model(model: ModelConfig, role: Role) -> ModelFacts:
    states = "recurrent layers" if model.is_hybrid or model.is_attention_free else None
    values, text = _values(model.hf_config), _values(model.hf_text_config)
    formats = read_weight_formats(Path(model.model), values)
    return ModelFacts(role, model.model, values, text, states, model.is_attention_free, formats)


def _values(config: Any) -> Mapping[str, Any]:
    values: Mapping[str, Any] = config.to_dict()
    return values


def _graph_mode(config: VllmConfig) -> str:
    """The mode of the target's graphs; the draft's configuration is judged in its place, too."""
    mode, speculative = config.compilation_config.cudagraph_mode, config.speculative_config
    if speculative is not None and config.model_config is speculative.draft_model_config:
        return "NONE"
    return "NONE" if mode is None else mode.name
