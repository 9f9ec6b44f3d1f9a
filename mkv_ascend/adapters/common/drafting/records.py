# SPDX-License-Identifier: Apache-2.0
"""Records of what the proposers replace in vllm-ascend's, and of what they set."""

from __future__ import annotations

from mkv_ascend.adapters.patching import record

DRAFT_CONFIG = record(
    name="a draft's own configuration",
    target=(
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer._create_draft_vllm_config",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._get_model",
        "vllm_ascend.ascend_config:_ASCEND_CONFIG",
        "vllm.model_executor.layers.mamba.abstract:MambaBase.get_kv_cache_spec",
        "vllm.config.speculative:SpeculativeConfig.__post_init__",
        "vllm.distributed.parallel_state:_EP",
        "vllm_ascend.eplb.adaptor.vllm_adaptor:VllmEplbAdaptor._registered_moe_layers",
        "vllm.model_executor.layers.vocab_parallel_embedding:VocabParallelEmbedding.weight_loader",
    ),
    reads=(
        "vllm.config.speculative:SpeculativeConfig.verify_equal_vocab_size_if_draft_model",
        "vllm_ascend.ascend_config:init_ascend_config",
        "vllm_ascend.eplb.core.eplb_utils:init_eplb_config",
        "vllm_ascend.eplb.adaptor.vllm_adaptor:VllmEplbAdaptor.register_layer",
        "vllm.config.speculative:SpeculativeConfig.create_draft_parallel_config",
        "vllm.config.speculative:SpeculativeConfig.hf_config_override",
        "vllm.distributed.parallel_state:initialize_model_parallel",
        "vllm.distributed.parallel_state:init_model_parallel_group",
        "vllm.distributed.parallel_state:get_ep_group",
        "vllm.model_executor.models.deepseek_mtp:DeepSeekMultiTokenPredictorLayer.forward",
        "vllm_ascend.ops.rotary_embedding:AscendRotaryEmbedding.forward_oot",
    ),
)

PROPOSALS = record(
    name="proposals over several KV groups, from one plan",
    target=(
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.initialize_attn_backend",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._propose",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer._run_merged_draft",
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.dummy_run",
        "vllm_ascend.spec_decode.dflash_proposer:AscendDflashProposer.dummy_run",
        "vllm.config.speculative:SpeculativeConfig.enforce_eager",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._get_drafter",
        "vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model._build_fused_kv_buffers",
    ),
    reads=(
        "vllm_ascend.spec_decode.llm_base_proposer:AscendSpecDecodeBaseProposer.__init__",
        "vllm_ascend.spec_decode.dflash_proposer:AscendDflashProposer.set_inputs_first_pass",
        "vllm.model_executor.models.qwen3_dflash:DFlashQwen3Model.precompute_and_store_context_kv",
        "vllm.v1.spec_decode.gemma4:Gemma4Proposer._setup_gemma4_kv_sharing",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner._gather_mm_embeddings",
    ),
)

PREPARED = record(
    name="what vllm-ascend prepares for a proposal",
    target=(
        "vllm_ascend.spec_decode.llm_base_proposer:"
        "AscendSpecDecodeBaseProposer.prepare_inputs_padded",
        "vllm_ascend.spec_decode.llm_base_proposer:"
        "AscendSpecDecodeBaseProposer.prepare_next_token_ids_padded",
        "vllm.v1.spec_decode.llm_base_proposer:SpecDecodeBaseProposer.prepare_next_token_ids_cpu",
    ),
    reads=("vllm.v1.worker.gpu_input_batch:CachedRequestState.get_token_id",),
)

PASSES = record(
    name="metadata, context and captured launches of a draft's passes",
    target=(
        "vllm_ascend.attention.attention_v1:AscendMetadata",
        "vllm_ascend.attention.mla_v1:AscendMLAMetadata",
        "vllm_ascend.attention.sfa_v1:AscendSFAMetadata",
        "vllm_ascend.attention.utils:AscendCommonAttentionMetadata",
        "vllm_ascend.attention.mla_v1:AscendMLAMetadataBuilder.build",
        "vllm_ascend.ascend_forward_context:_EXTRA_CTX",
        "vllm_ascend.compilation.acl_graph:_draft_graph_params",
    ),
    reads=(
        "vllm_ascend.attention.mla_v1:AscendMLAMetadataBuilder.__init__",
        "vllm_ascend.ascend_forward_context:_ExtraForwardContextProxy",
        "vllm_ascend.ascend_forward_context:set_ascend_forward_context",
        "vllm_ascend.compilation.acl_graph:get_draft_graph_params",
        "vllm_ascend.compilation.acl_graph:set_draft_graph_params",
    ),
)
