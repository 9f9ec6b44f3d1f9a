# SPDX-License-Identifier: Apache-2.0
"""What rules judge, read from the configuration that vLLM made."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm import envs as vllm_envs

from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.adapters.installed import rules
from mkv_ascend.attention import catalog
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.layout.kind import Role
from mkv_ascend.rules.facts import EMULATED, DeviceFacts, Facts, SpeculationFacts
from mkv_ascend.rules.kv_cache import OFFLOADING, SIMPLE_OFFLOAD
from mkv_ascend.rules.model import ConfigFileError, ModelFacts, read_object, read_weight_formats

if TYPE_CHECKING:
    from vllm.config import ModelConfig, ParallelConfig, SpeculativeConfig, VllmConfig

OWN_DRAFTS = ("draft_model", "eagle", "eagle3", "mtp", "dflash", "dspark")
"""Methods whose draft is a model: for others vLLM names the target."""
OF_DRAFTS = (
    *("disable_padded_drafter_batch", "parallel_drafting", "max_model_len", "enforce_eager"),
    *("draft_sample_method", "use_heterogeneous_vocab", "kv_cache_dtype"),
    *("use_local_argmax_reduction", "enable_adaptive_verification"),
)
"""Options of speculation that are only read; vLLM 0.23.0 lacks some."""
RESOLVED_MODES = frozenset({"auto", "slow"})
"""Of ``--tokenizer-mode``: vLLM's ``resolve_tokenizer_args`` makes others of them."""
PACKING = "VLLM_RAY_DP_PACK_STRATEGY"
"""vLLM's variable that says how ray places the copies of --data-parallel-size."""


def is_of_draft(config: VllmConfig) -> bool:
    """Whether it is the copy that vLLM makes for a draft, which stands there for the target."""
    speculative, model = config.speculative_config, config.model_config
    if speculative is None or model is not speculative.draft_model_config:
        return False
    # Of methods without a model the target stands for the draft.
    return model is not speculative.target_model_config


def facts_of(config: VllmConfig, backend: str | None = None) -> Facts:
    """The facts of a configuration.

    Args:
        config: of the target, as vLLM and vllm-ascend have completed it.
        backend: name that vLLM's own option of backends had before vllm-ascend took it out.
    """
    # Not with this module: it needs torch.distributed.
    from vllm_ascend.utils import enable_sp

    speculative, model = config.speculative_config, config.model_config
    draft = None
    if speculative is not None and speculative.method in OWN_DRAFTS:
        draft = speculative.draft_model_config
    asked, inputs = config.attention_config.backend, model.multimodal_config
    # vLLM 0.23.0 has no such option.
    by_kind = getattr(config.attention_config, "backend_per_kind", {}).items()
    loading = getattr(speculative, "draft_load_config", None)
    return Facts(
        **_of_ranks(config.parallel_config),
        **_of_caches(config),
        **_of_steps(config),
        options=options_of(config),
        target=_model(model, Role.TARGET),
        device=devices(),
        host=rules(),
        runner="v2" if getattr(config, "use_v2_model_runner", False) else "v1",
        speculation=None if speculative is None else _speculation(speculative),
        draft=None if draft is None else _model(draft, Role.DRAFT),
        named_by_draft=() if draft is None else _named_in_file(draft),
        dtype=str(model.dtype).removeprefix("torch."),
        max_model_len=model.max_model_len,
        lora=config.lora_config is not None,
        text_only=inputs is not None and inputs.language_model_only,
        logits_processors=bool(model.logits_processors),
        cpu_offload_gb=config.offload_config.uva.cpu_offload_gb,
        prefetches_weights=config.offload_config.prefetch.offload_group_size > 0,
        vllm_backends=(
            backend or getattr(asked, "name", None),
            getattr(getattr(speculative, "attention_backend", None), "name", None),
        ),
        vllm_by_kind=tuple((kind, getattr(one, "name", str(one))) for kind, one in by_kind),
        ascend={**(config.additional_config or {}), "enable_flashcomm1": enable_sp(config)},
        load_format=str(config.load_config.load_format),
        draft_load_format=str((loading or config.load_config).load_format),
        tokenizer_mode=str(model.tokenizer_mode),
        tokenizer_modes=_tokenizer_modes(model),
    )


def _of_ranks(parallel: ParallelConfig) -> dict[str, Any]:
    executor = parallel.distributed_executor_backend
    return {
        "tensor_parallel": parallel.tensor_parallel_size,
        "pipeline_parallel": parallel.pipeline_parallel_size,
        "data_parallel": parallel.data_parallel_size,
        "prefill_context_parallel": parallel.prefill_context_parallel_size,
        "decode_context_parallel": parallel.decode_context_parallel_size,
        "expert_parallel": parallel.enable_expert_parallel,
        "devices_needed": _devices_needed(parallel),
        "executor": getattr(executor, "__name__", executor),
        "enable_eplb": parallel.enable_eplb,
        "eplb_copies": parallel.eplb_config.num_redundant_experts,
    }


def _of_caches(config: VllmConfig) -> dict[str, Any]:
    cache, transfer = config.cache_config, config.kv_transfer_config
    return {
        "kv_role": None if transfer is None else transfer.kv_role,
        "connectors": frozenset(connector_names(config)),
        "has_transfer": transfer is not None,
        "has_offloading": cache.kv_offloading_size is not None,
        "prefix_caching": bool(cache.enable_prefix_caching and cache.mamba_cache_mode != "none"),
        "block_size": cache.block_size or 0,
        "cache_dtype": str(cache.cache_dtype),
        "one_kind_of_cache": bool(config.scheduler_config.disable_hybrid_kv_cache_manager),
        "states_of_all_blocks": cache.mamba_cache_mode == "all",
    }


def _of_steps(config: VllmConfig) -> dict[str, Any]:
    compilation, scheduler = config.compilation_config, config.scheduler_config
    # vLLM 0.23.0 lacks it.
    by_batch = getattr(config.speculative_config, "num_speculative_tokens_per_batch_size", None)
    mode = compilation.cudagraph_mode
    return {
        "graph_mode": "NONE" if mode is None else str(mode.name),
        "is_compiled": getattr(compilation.mode, "name", "") == "VLLM_COMPILE",
        "async_scheduling": bool(scheduler.async_scheduling),
        "max_num_batched_tokens": scheduler.max_num_batched_tokens,
        "dynamic_speculation": bool(by_batch),
    }


def _devices_needed(parallel: ParallelConfig) -> int | None:
    """Devices that this machine must have; None where ray looks for those of other nodes, too.

    By default ("strict") ray puts the copies of ``--data-parallel-size-local`` on the node of
    ``--data-parallel-address``, which is this one where no other is given.
    """
    from vllm.utils.network_utils import get_ip

    if parallel.distributed_executor_backend in ("ray", "external_launcher"):
        return None
    if parallel.data_parallel_backend == "ray":
        packed = os.environ.get(PACKING, "strict") == "strict"
        if not packed or parallel.data_parallel_master_ip not in ("127.0.0.1", get_ip()):
            return None
    copies = parallel.data_parallel_size_local if parallel.data_parallel_size > 1 else 1
    return copies * parallel.local_world_size


def _tokenizer_modes(model: ModelConfig) -> frozenset[str]:
    """What vLLM's registries have, with modes of plugins, and what it resolves before it asks them.

    A mode needs what renders chats, and a tokenizer where one is made.
    """
    from vllm.renderers.registry import RENDERER_REGISTRY
    from vllm.tokenizers import TokenizerRegistry

    found = set(RENDERER_REGISTRY.renderers)
    if not model.skip_tokenizer_init:
        found &= set(TokenizerRegistry.tokenizers)
    return frozenset(found | RESOLVED_MODES)


def _speculation(speculative: SpeculativeConfig) -> SpeculationFacts:
    ranks = speculative.draft_parallel_config
    options = {name: getattr(speculative, name, None) for name in OF_DRAFTS}
    options["draft_tensor_parallel_size"] = None if ranks is None else ranks.tensor_parallel_size
    tokens = speculative.num_speculative_tokens or 0
    return SpeculationFacts(str(speculative.method), tokens, options)


def _model(model: ModelConfig, role: Role) -> ModelFacts:
    values, text = _values(model.hf_config), _values(model.hf_text_config)
    try:
        formats = read_weight_formats(Path(model.model), values)
    except ConfigFileError:
        formats = None  # vllm-ascend reads it, too, and says so.
    return ModelFacts(
        role,
        model.model,
        values,
        text,
        model.is_hybrid or model.is_attention_free,
        model.is_attention_free,
        formats,
        model.quantization,
        None if model.is_attention_free else model.get_head_size(),
    )


def _values(config: Any) -> Mapping[str, Any]:
    """What a configuration holds, by the names that all models have as well (Bloom: ``n_head``)."""
    values: Mapping[str, Any] = config.to_dict()
    aliases = getattr(config, "attribute_map", {}).items()
    return {**{name: values[own] for name, own in aliases if own in values}, **values}


def _named_in_file(model: ModelConfig) -> tuple[str, ...]:
    """Classes in a folder's config.json: vLLM makes those of heads of them; none for others."""
    try:
        found = read_object(Path(model.model) / "config.json") or {}
    except ConfigFileError:
        return ()
    names = found.get("architectures")
    return tuple(map(str, names)) if isinstance(names, list) else ()


def connector_names(config: VllmConfig) -> set[str]:
    """Names of vLLM's registry; classes of the user's own are not among them."""
    cache, names = config.cache_config, set()
    if cache.kv_offloading_size is not None and cache.kv_offloading_backend == "native":
        # vLLM only writes this into kv_transfer_config after the platform was asked.
        names.add(SIMPLE_OFFLOAD if vllm_envs.VLLM_USE_SIMPLE_KV_OFFLOAD else OFFLOADING)
    if config.kv_transfer_config is not None:
        names.update(_registered(vars(config.kv_transfer_config)))
    return names


def _registered(connector: Mapping[str, Any]) -> Iterator[str]:
    """The name of one connector, and of those that a MultiConnector holds."""
    name = connector.get("kv_connector")
    if name is None or connector.get("kv_connector_module_path"):
        return
    yield name
    for child in (connector.get("kv_connector_extra_config") or {}).get("connectors", ()):
        yield from _registered(child)


MOST_MEMORY = {DeviceGeneration.A2: 64 << 30, DeviceGeneration.A3: 64 << 30}
"""Bytes of a device's memory that no smaller request can exceed: asking would start the driver."""

_judged_for: DeviceFacts | None = None


def judge_for(given: DeviceFacts) -> None:
    """Let ``devices`` answer so: this process judges a command for other devices than its own."""
    global _judged_for
    _judged_for = given


def devices() -> DeviceFacts:
    """The devices that a configuration of this process is judged for."""
    # Imports of vLLM go in circles where the platform is imported.
    import torch_npu
    from vllm import envs as vllm_envs
    from vllm_ascend.utils import get_ascend_device_type

    if _judged_for is not None:
        return _judged_for
    generation = DeviceGeneration(get_ascend_device_type().name.lstrip("_"))
    emulated = hasattr(torch_npu, "emulated_extra_dtypes")
    return DeviceFacts(
        count=torch_npu.npu.device_count(),
        memory_bytes=getattr(torch_npu, "emulated_memory_bytes", MOST_MEMORY.get(generation)),
        generation=generation,
        source=EMULATED if emulated else "visible NPUs",
        extra_dtypes=getattr(torch_npu, "emulated_extra_dtypes", frozenset()),
        modules=catalog.installed_modules(),
        batch_invariant=bool(vllm_envs.VLLM_BATCH_INVARIANT),
    )
