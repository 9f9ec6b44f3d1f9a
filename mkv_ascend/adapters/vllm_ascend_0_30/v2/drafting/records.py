# SPDX-License-Identifier: Apache-2.0
"""The record of what our speculator replaces in vLLM's, and of what it sets."""

from __future__ import annotations

from mkv_ascend.adapters.patching import record

SPECULATOR = record(
    name="proposals of model runner V2, from one plan",
    target=(
        "vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator.__init__",
        "vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator.load_draft_model",
        "vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator.load_model",
        "vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator.set_attn",
        "vllm.v1.worker.gpu.spec_decode.speculator:BaseSpeculator.init_cudagraph_manager",
        "vllm.v1.worker.gpu.spec_decode.speculator:BaseSpeculator.capture",
        "vllm.v1.worker.gpu.spec_decode.speculator:BaseSpeculator.propose",
    ),
    reads=(
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.sample_tokens",
        "vllm.v1.worker.gpu.model_runner:GPUModelRunner.initialize_kv_cache",
        "vllm.v1.worker.gpu.spec_decode.speculator:DraftModelSpeculator.sample_draft",
        "vllm_ascend.platform:NPUPlatform.set_additional_forward_context",
        "vllm_ascend.models.layer.attention.layer:DSAAttention.get_kv_cache_spec",
        "vllm.v1.worker.cp_utils:check_attention_cp_compatibility",
    ),
)
