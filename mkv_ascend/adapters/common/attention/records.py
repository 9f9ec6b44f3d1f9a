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
    writes=("mkv_ascend_choice", "attn_backend", "get_kv_cache_spec"),
    why="The platform's method that chooses a backend is told no layer, and its answer is cached "
    "for all of them. Both constructors take attn_backend; models do not pass it. MLAAttention "
    "takes one only if it answers is_mla(). The other methods answer with the classes that are "
    "derived here. And vllm-ascend chooses classes for context parallelism once for the process: "
    "those have no windows, so layers of a draft that needs them are given the others, and ask for "
    "a cache of all keys on each rank.",
    until="vLLM passes the layer to Platform.get_attn_backend_cls or vllm-ascend heeds "
    "attention_config.backend_per_kind, its MLA backends answer is_mla(), and its attention over "
    "shares of a sequence has windows and knows tokens that see those behind them",
    test=(
        "tests/emulated/models/test_backend_choice.py",
        "tests/emulated/models/test_adapted_backends.py",
        "tests/emulated/drafting/test_pairs.py::test_mla_target_with_dense_draft",
        "tests/emulated/drafting/test_pairs.py::test_target_on_flash_attention_3_verifies_drafts",
        "tests/emulated/layout/test_layout_engines.py"
        "::test_the_drafts_cache_may_have_a_dtype_of_its_own",
        "tests/emulated/drafting/test_replicated_drafts.py",
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
    writes=("cos", "sin"),
    reads=(
        "vllm.model_executor.layers.rotary_embedding:get_rope",
        "vllm_ascend.ops.rotary_embedding:set_cos_and_sin",
        "vllm_ascend.ops.rotary_embedding:get_cos_and_sin_mla",
        "vllm_ascend.ops.rotary_embedding:_record_cos_sin_cache",
        "vllm_ascend.ops.rotary_embedding:_record_cos_and_sin_cache",
        "vllm_ascend.ops.rotary_embedding:_record_cos_and_sin_cache_interleaved",
        "vllm_ascend.ops.rotary_embedding:update_cos_sin",
    ),
    why="vLLM hands out one rotary module for equal parameters, in either model, and ERNIE-4.5 and "
    "GLM-4 set is_neox_style of the one they are given. "
    "The tables are one set per process: a draft with another rotary base spoils the target's "
    "or gets them. A draft's metadata builders are given the target's configuration, read the "
    "process's tables, and return rows of an MLA decode as views of one buffer for all passes. "
    "And builders of MLA read the block size of the cache configuration, not of their own group.",
    until="vLLM's ERNIE-4.5 and GLM-4 pass is_neox_style to get_rope (not reported), and "
    "vllm-ascend creates builders with the configuration of their model and the block size "
    "of their spec, and keeps rotary tables per model",
    test=(
        "tests/emulated/drafting/test_draft_isolation.py",
        "tests/emulated/models/test_adapted_backends.py"
        "::test_builders_of_mla_take_the_block_size_of_their_group",
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
    why="Queries, keys and values come in the model's dtype, and the operators take one dtype, the "
    "cache's. Those of a prefill of MLA come in bfloat16, with a buffer of that dtype for the "
    "cached context.",
    until="vllm-ascend casts them to the dtype of the cache",
    test=(
        "tests/emulated/layout/test_layout_engines.py"
        "::test_the_drafts_cache_may_have_a_dtype_of_its_own",
        "tests/emulated/models/test_adapted_backends.py"
        "::test_cached_context_is_attended_to_in_the_dtype_of_the_cache",
        "tests/emulated/models/test_adapted_backends.py::test_a_prefill_in_float32_is_not_rounded",
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
    writes=("sliding_window",),
    why="A sliding window of W keeps the query's own key and the W - 1 before it. vllm-ascend "
    "passes W as pre_tokens to fused_infer_attention_score, whose documented bound and golden test "
    "keep pre_tokens + 1 keys: one too many. W - 1 is passed instead. "
    "attention.window_bound = 'vllm_ascend' leaves W. And where rows see those behind them, "
    "vllm-ascend passes no window at all, and in a graph one without later keys; vLLM's reaches as "
    "far ahead as back.",
    until="vllm-ascend passes sliding_window - 1, or hardware shows an exclusive bound, and it "
    "passes next_tokens where metadata is not causal",
    test=(
        "tests/emulated/models/test_models.py::test_tokens_are_those_of_hugging_face",
        "tests/emulated/drafting/test_windows_in_blocks.py"
        "::test_every_draft_token_eagerly_and_in_graphs",
        "tests/emulated/drafting/test_symmetric_windows.py",
    ),
)
