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
    writes=(
        "is_draft_model",
        "draft_attn_layer_names",
        "model_state",
        "need_to_return_lse_for_decode",
        "supports_mtp_with_cp_non_trivial_interleave_size",
    ),
    why="A proposal of vLLM's builds metadata and slots anew for each pass and reads the target's "
    "in the first. The forward context of this runner never says that a draft runs, and MLA notes "
    "its captured launches by that. Layers without a cache count as the draft's, too: that of "
    "DeepSeek-V4's MTP keeps its window in another one. And where ranks share keys, vLLM asks each "
    "layer whether its attention takes a share, also a draft's that has all keys on each rank.",
    until="vLLM plans the passes of a proposal once",
    test="tests/emulated/runner_v2/test_drafts.py",
)
