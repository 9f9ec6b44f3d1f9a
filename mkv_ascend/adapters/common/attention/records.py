# SPDX-License-Identifier: Apache-2.0
"""Records of what is replaced in attention by more than one file of this folder."""

from __future__ import annotations

from mkv_ascend.adapters.patching import record

BACKEND_PER_LAYER = record(
    name="backend per layer",
    target=(
        "vllm.model_executor.layers.attention.attention:Attention.__init__",
        "vllm.model_executor.layers.attention.mla_attention:MLAAttention.__init__",
        "vllm.v1.attention.backend:AttentionBackend.is_mla",
        "vllm_ascend.attention.attention_v1:AscendAttentionBackend.get_impl_cls",
        "vllm_ascend.attention.mla_v1:AscendMLABackend.get_impl_cls",
        "vllm_ascend.attention.mla_v1:AscendMLABackend.get_builder_cls",
        "vllm_ascend.attention.fa3_v1:AscendFABackend.get_impl_cls",
    ),
    reads=(
        "vllm.model_executor.layers.attention.attention:Attention.get_kv_cache_spec",
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl",
    ),
)

OF_ONE_MODEL = record(
    name="metadata builders and rotary tables by model and group",
    target=(
        "vllm.model_executor.layers.rotary_embedding:_ROPE_DICT",
        "vllm_ascend.ops.rotary_embedding:_cos_mla",
        "vllm_ascend.ops.rotary_embedding:_sin_mla",
        "vllm_ascend.ops.rotary_embedding:_cos_cache",
        "vllm_ascend.ops.rotary_embedding:_sin_cache",
        "vllm_ascend.ops.rotary_embedding:_cos_sin_cache",
        "vllm_ascend.ops.rotary_embedding:_cos",
        "vllm_ascend.ops.rotary_embedding:_sin",
        "vllm_ascend.ops.rotary_embedding:_cos_slice",
        "vllm_ascend.ops.rotary_embedding:_sin_slice",
        "vllm_ascend.attention.attention_v1:AscendAttentionBackend.get_builder_cls",
        "vllm_ascend.attention.attention_v1:AscendAttentionMetadataBuilder.__init__",
        "vllm_ascend.attention.mla_v1:AscendMLAMetadataBuilder.__init__",
        "vllm_ascend.attention.mla_v1:AscendMLAMetadataBuilder.build",
        "vllm_ascend.attention.sfa_v1:AscendSFAMetadataBuilder.__init__",
        "vllm_ascend.attention.sfa_v1:AscendSFAMetadataBuilder.build",
    ),
    reads=(
        "vllm.model_executor.layers.rotary_embedding:get_rope",
        "vllm_ascend.ops.rotary_embedding:set_cos_and_sin",
        "vllm_ascend.ops.rotary_embedding:get_cos_and_sin_mla",
        "vllm_ascend.ops.rotary_embedding:_record_cos_sin_cache",
        "vllm_ascend.ops.rotary_embedding:_record_cos_and_sin_cache",
        "vllm_ascend.ops.rotary_embedding:_record_cos_and_sin_cache_interleaved",
        "vllm_ascend.ops.rotary_embedding:update_cos_sin",
    ),
)

IN_DTYPE_OF_CACHE = record(
    name="attention in the dtype of the cache",
    target=(
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.forward",
        "vllm_ascend.attention.fa3_v1:AscendFAImpl.forward",
        "vllm_ascend.attention.mla_v1:AscendMLAImpl._compute_prefill_context",
        "vllm_ascend.attention.mla_v1:AscendMLAImpl._forward_prefill",
    ),
)

WINDOW = record(
    name="window bound",
    target=(
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl.__init__",
        "vllm_ascend.attention.attention_v1:AscendAttentionBackendImpl"
        ".forward_fused_infer_attention",
    ),
    reads=("vllm_ascend.attention.fa3_v1:AscendFAImpl",),
)
