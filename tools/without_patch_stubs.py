# SPDX-License-Identifier: Apache-2.0
"""What ``without_patch.py`` leaves out where neither ``@patch`` nor a method tells a record's part.

Such parts are functions of ours that set what is foreign. Without the record they do nothing, or
what the expression behind ``=`` does, which sees their module and the function as ``original``.
"""

from __future__ import annotations

from collections.abc import Mapping

COMMON = "mkv_ascend.adapters.common"
ADAPTER_0_23 = "mkv_ascend.adapters.vllm_ascend_0_23"
ADAPTER_0_30 = "mkv_ascend.adapters.vllm_ascend_0_30.common"
RUNNER_V2 = "mkv_ascend.adapters.vllm_ascend_0_30.v2"
BACKENDS = f"{COMMON}.backends"
ROTARY = "vllm_ascend.ops.rotary_embedding"
ROTARY_GLOBALS = (
    *("_cos_mla", "_sin_mla", "_cos_cache", "_sin_cache", "_cos_sin_cache"),
    *("_cos", "_sin", "_cos_slice", "_sin_slice"),
)
SPECULATIVE = "vllm.config.speculative:SpeculativeConfig"
STOCK_RUNNER = "vllm_ascend.worker.model_runner_v1:NPUModelRunner"
STOCK_RUNNER_V2 = "vllm.v1.worker.gpu.model_runner"
ATTENTION = "vllm_ascend.attention.attention_v1"
MLA = "vllm_ascend.attention.mla_v1"
PAGES = f"{COMMON}.kv_cache.page_blocks:PageBlocks"
POOL = "vllm.v1.core.block_pool:BlockPool"

STUBS: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "a draft's own configuration": {
        f"{COMMON}.drafting.draft_config:preserve_ascend_config": (
            "vllm_ascend.ascend_config:_ASCEND_CONFIG",
        ),
        f"{COMMON}.drafting.strategies:use_draft_recurrent_specs": (
            "vllm.model_executor.layers.mamba.abstract:MambaBase.get_kv_cache_spec",
        ),
        f"{COMMON}.patches.experts:make_for_draft": ("vllm.distributed.parallel_state:_EP",),
        f"{COMMON}.drafting.draft_building:unmoved_experts=contextlib.nullcontext": (
            "vllm_ascend.eplb.adaptor.vllm_adaptor:VllmEplbAdaptor._registered_moe_layers",
        ),
    },
    "blocks of a draft's states": {
        f"{COMMON}.patches.prefix_hits:DraftRecurrentSpec.prefix_cacheable=lambda spec: True": (
            "vllm.v1.kv_cache_interface:KVCacheSpec.prefix_cacheable",
        ),
    },
    "heads of two sizes": {
        f"{COMMON}.patches.attention:drop_rows_of_other_sizes": (
            f"{ROTARY}:_cos",
            f"{ROTARY}:_sin",
        ),
    },
    "caches from a plan in model runner V2": {
        f"{RUNNER_V2}.planned_caches:PlannedCaches.allocate="
        "lambda self, host, *given: host(*given)": (
            "vllm.v1.worker.gpu.attn_utils:allocate_kv_cache",
        ),
    },
    "hidden states of any target": {
        f"{COMMON}.patches.auxiliary_states:hand_out": (
            "vllm_ascend.worker.model_runner_v1:get_model",
        ),
        f"{COMMON}.patches.auxiliary_states:decoders_as_they_are=contextlib.nullcontext": (
            "vllm_ascend.patch.worker.patch_eagle3_pp_aux:patch_eagle3_pp_aux_propagation",
        ),
    },
    "hidden states of any target in model runner V2": {
        f"{RUNNER_V2}.patches.speculators:with_auxiliary_states": (
            f"{STOCK_RUNNER_V2}:set_eagle3_aux_hidden_state_layers",
        ),
    },
    "KV groups of target and draft": {
        f"{ADAPTER_0_30}.kv_cache.planned_specs:corrected_specs="
        "lambda specs, layers: dict(specs)": (f"{STOCK_RUNNER}.get_kv_cache_spec",),
        f"{ADAPTER_0_30}.kv_cache.planned_specs:size_of_index_keys": (
            f"{STOCK_RUNNER}.get_kv_cache_spec",
        ),
    },
    "latent attention that rotates nothing": {
        f"{ADAPTER_0_23}.patches.target_fixes:record_identity_rope": (),
    },
    "pages that groups share": {
        f"{PAGES}.__init__=lambda pool, stock, _: vars(pool).update(vars(stock))": (
            f"{POOL}.__init__",
        ),
        f"{PAGES}.get_new_blocks=BlockPool.get_new_blocks": (f"{POOL}.get_new_blocks",),
    },
    "metadata, context and captured launches of a draft's passes": {
        f"{BACKENDS}.dense:Dense.set_lengths": (f"{ATTENTION}:AscendMetadata",),
        f"{BACKENDS}.mla:MLA.set_lengths": (f"{MLA}:AscendMLAMetadata",),
        f"{BACKENDS}.sparse_mla:SparseMLA.for_later_passes=MLA.__base__.for_later_passes": (
            "vllm_ascend.attention.sfa_v1:AscendSFAMetadata",
        ),
        f"{COMMON}.backends.port:CommonMetadata.of="
        "lambda self, batch: shallow_copy(batch.common or _of_verify_step(batch))": (
            "vllm_ascend.attention.utils:AscendCommonAttentionMetadata",
        ),
        f"{COMMON}.drafting.strategies:widen_decodes": (f"{MLA}:AscendMLAMetadataBuilder.build",),
        f"{COMMON}.drafting.draft:AscendDraft.begin_later_passes": (
            "vllm_ascend.ascend_forward_context:_EXTRA_CTX",
        ),
        f"{ADAPTER_0_30}.drafting.host:send_tokens_to_experts": (
            "vllm_ascend.ascend_forward_context:_EXTRA_CTX",
        ),
        f"{COMMON}.drafting.launches:use": (
            "vllm_ascend.compilation.acl_graph:_draft_graph_params",
        ),
    },
    "metadata builders and rotary tables by model and group": {
        f"{COMMON}.attention.rope_tables:_write=lambda values: original("
        f"{{name: value for name, value in values.items() if name != {name!r}}})": (
            f"{ROTARY}:{name}",
        )
        for name in ROTARY_GLOBALS
    }
    | {
        f"{COMMON}.attention.building:replaced=lambda *_: contextlib.nullcontext()": (
            "vllm.model_executor.layers.rotary_embedding:_ROPE_DICT",
        ),
    },
    "metadata of the target's pass in model runner V2": {
        f"{RUNNER_V2}.planned_caches:without_layers=lambda groups, layers: groups": (
            f"{STOCK_RUNNER_V2}:GPUModelRunner.execute_model",
        ),
    },
    "models and servers that are not started, for check": {
        f"{COMMON}.judge.building:_replace_everywhere=lambda found, ours: None "
        "if found.__name__ == 'get_model' else original(found, ours)": (
            "vllm.model_executor.model_loader:get_model",
        ),
        f"{COMMON}.judge.building:_replace_everywhere=lambda found, ours: None "
        "if found.__name__ == 'get_rope' else original(found, ours)": (
            "vllm.model_executor.layers.rotary_embedding:get_rope",
        ),
        f"{COMMON}.judge.building:_keep_tables_off_the_device": (
            "vllm_ascend.ops.rope_dsv4:current_platform",
        ),
        f"{COMMON}.judge.building:_replace_everywhere=lambda found, ours: None "
        "if found.__name__ in ('determine_expert_map', 'init_eplb_config') "
        "else original(found, ours)": (
            "vllm.model_executor.layers.fused_moe.expert_map_manager:determine_expert_map",
            "vllm_ascend.eplb.core.eplb_utils:init_eplb_config",
        ),
        f"{COMMON}.judge.command:look_at_classes_in_copies": (
            "vllm.model_executor.models.registry:_run_in_subprocess",
        ),
        **{
            f"{COMMON}.judge.command:starters=lambda: "
            f"[name for name in original() if name != {starter!r}]": (
                f"vllm.entrypoints.cli.serve:{starter}",
            )
            for starter in ("run_headless", "run_multi_api_server", "run_dp_supervisor")
        },
    },
    "our platform, worker and model runner": {
        "mkv_ascend.adapters.platform_slot:claim": ("vllm_ascend:register",),
        "mkv_ascend.adapters.vllm_ascend_0_30.ascend_options:accept": (
            "vllm_ascend.ascend_config:AscendConfig",
        ),
    },
    "proposals over several KV groups, from one plan": {
        f"{COMMON}.drafting.mask_tokens:MaskTokensDraft.bind_layers": (
            "vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model._build_fused_kv_buffers",
        ),
        f"{COMMON}.drafting.proposers:without_graphs_of_the_host": (
            f"{SPECULATIVE}.enforce_eager",
        ),
    },
    "states go on from what was accepted": {
        f"{COMMON}.patches.recurrent:with_accepted_tokens": (
            "vllm.v1.attention.backends.mamba_attn:BaseMambaAttentionMetadataBuilder.build",
            "vllm.v1.attention.backends.mamba2_attn:Mamba2AttentionMetadataBuilder.build",
        ),
    },
    "values of another head size than keys": {
        f"{COMMON}.patches.attention:size_the_output": (
            f"{ATTENTION}:AscendAttentionBackendImpl.__init__",
        ),
    },
    "verify steps on keys and values of 8 bits": {
        **{
            f"{COMMON}.patches.quantized:_Replacements.{ours}="
            "lambda self, stock, *given, **named: stock(*given, **named)": (
                f"{ATTENTION}:AscendC8AttentionBackendImpl.{theirs}",
            )
            for ours, theirs in (
                ("chunked", "_forward_c8_chunked_prefill"),
                ("fused", "_forward_c8_fused_infer_attention"),
                ("captured", "full_graph_fia"),
            )
        },
        f"{COMMON}.patches.quantized:_view_of_its_blocks=lambda stock, *given: stock(*given)": (
            f"{ATTENTION}:AscendC8AttentionBackendImpl._nz_5d_view",
        ),
    },
    "verify steps of any method in full graphs": {
        f"{COMMON}.graphs:take_lengths_on_the_host": (
            f"{ATTENTION}:AscendAttentionMetadataBuilder.__init__",
        ),
    },
    "weights that a draft's files lack": {
        f"{COMMON}.weights:_WithoutValues.__torch_function__=lambda _, function, types, "
        "given=(), named=None: function(*given, **(named or {}))": (
            "vllm.model_executor.model_loader.base_loader:initialize_model",
        ),
        f"{COMMON}.weights:_without_values=lambda model: []": (
            "vllm.model_executor.model_loader.base_loader:process_weights_after_loading",
        ),
    },
    "window bound": {
        f"{COMMON}.attention.layers:_bound_the_window": (
            f"{ATTENTION}:AscendAttentionBackendImpl.__init__",
        ),
        f"{ADAPTER_0_30}.patches.attention:implementation=lambda base: base": (
            f"{ATTENTION}:AscendAttentionBackendImpl.forward_fused_infer_attention",
        ),
    },
}
"""Record -> function of ours, and what to do instead -> the record's targets that it sets."""

PROPOSER = "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer"
PARTS: Mapping[str, str] = {
    "vllm.model_executor.layers.attention.attention:Attention.__init__": ":Attention.__init__",
    f"{PROPOSER}.dummy_run": ("AscendDraftModelProposer.dummy_run|AscendEagleProposer.dummy_run"),
    "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.prepare_next_token_ids_cpu": (
        ".prepare_next_token_ids_cpu"
    ),
    "vllm_ascend.worker.worker:NPUModelRunner": ".init_device",
}
"""Target -> parts of verdicts' texts, where the target's own class and name are not in them."""
