# SPDX-License-Identifier: Apache-2.0
"""Catalog entries of the backends of vllm-ascend 0.23.0.

Each fact names its source: a file of vllm-ascend (``attention/...``), of vLLM (``vllm/...``), or
the documentation of an operator in op-plugin (``npu_...``). Context-parallel and key-compression
variants are not entries: vllm-ascend takes them inside a backend, by its own options.
"""

from __future__ import annotations

from mkv_ascend.attention.entry import (
    BackendEntry,
    DeviceGeneration,
    GraphSupport,
    HeadSizes,
    OperatorLimits,
)
from mkv_ascend.layout.kind import Kind

_HALF_DTYPES = frozenset({"float16", "bfloat16"})
_ATLAS_800 = frozenset({DeviceGeneration.A2, DeviceGeneration.A3, DeviceGeneration.A5})
_ALL_GENERATIONS = frozenset(DeviceGeneration)
_WITHOUT_SINKS_AND_WINDOWS = frozenset({"sinks", "sliding_window"})

FUSED_INFER_ATTENTION = BackendEntry(
    name="fused_infer_attention",
    class_path="vllm_ascend.attention.attention_v1:AscendAttentionBackend",
    aliases=frozenset({"ASCEND", "FIA"}),
    # attention/attention_v1.py: windows by sparse mode 4, encoder-decoder by its own branch.
    # chunked_local is absent: vLLM's chunked builder rebuilds the metadata without the fields
    # that attention_v1.py reads (attn_state).
    kinds=frozenset({Kind.FULL_ATTENTION, Kind.SLIDING_WINDOW, Kind.CROSS_ATTENTION}),
    # npu_fused_infer_attention_score: query float16, bfloat16; key and value also int8.
    model_dtypes=_HALF_DTYPES,
    kv_cache_dtypes=_HALF_DTYPES | {"int8"},
    # attention/attention_v1.py: layout TND, whose sizes CANN lists in its refusal of others
    # ("queryD, keyD and valueD must be same equal 192/128/64, or queryD and keyD equal 192 and
    # valueD equal 128"). 256 is Qwen3-Next's, which vllm-ascend serves; 512 has another layout
    # (device/device_op.py).
    head_sizes=HeadSizes(exactly=(64, 128, 192, 256, 512)),
    # attention/attention_v1.py: layers of encoders take npu_fusion_attention.
    without_cache=OperatorLimits(_HALF_DTYPES | {"float32"}, HeadSizes(maximum=768)),
    generations=_ATLAS_800,
    rank=10,
    # attention/attention_v1.py: learnable_sink of npu_fused_infer_attention_score_v2; only the
    # owner of shared keys writes them (0.23.0: shared_keys.py of our adapter). alibi_slopes and
    # logits_soft_cap are taken and not looked at, and other arguments are lost in **kwargs. The
    # operator documents no soft cap, and no pse_shift with the layout TND.
    computes=frozenset({"sinks", "kv_sharing_target_layer_name"}),
    implementations_without=(
        # attention/context_parallel/attention_cp.py: 0.23.0, 0.30.0rc2.
        ("AscendAttentionCPImpl", _WITHOUT_SINKS_AND_WINDOWS),
        ("AscendAttentionDCPImpl", _WITHOUT_SINKS_AND_WINDOWS),
        # attention/attention_v1.py, attention/attention_c8_mxfp.py: keys and values of 8 bits.
        ("AscendC8AttentionBackendImpl", _WITHOUT_SINKS_AND_WINDOWS),
        ("AscendC8MXFPAttentionBackendImpl", _WITHOUT_SINKS_AND_WINDOWS),
    ),
    # attention/attention_v1.py: sparse mode 0 when the metadata is not causal.
    non_causal=True,
    # npu_fused_infer_attention_score: with a block_table no values of 192.
    other_value_sizes=((192, 128),),
    # casting_implementation
    casts_to_cache=True,
    # npu_fused_infer_attention_score: num_heads / num_key_value_heads is at most 64.
    max_queries_per_kv_head=64,
    # attention/attention_v1.py: get_cudagraph_support of the builder.
    graphs=GraphSupport.ALWAYS,
    # batch_invariant.py: replaces npu_fused_infer_attention_score, but not its v2 (sinks).
    batch_invariant_modules=frozenset({"batch_invariant_ops"}),
    notes=(
        "layers of encoders, which keep no keys, may be of float32 and have heads of any size "
        "up to 768 (npu_fusion_attention)",
        "a head size of 512 runs on A2 and A3 without a sliding window only (device/device_op.py)",
    ),
)

FLASH_ATTENTION_3 = BackendEntry(
    name="flash_attention_3",
    class_path="vllm_ascend.attention.fa3_v1:AscendFABackend",
    aliases=frozenset({"FA3"}),
    # platform.py: get_attn_backend_cls reads vLLM's FLASH_ATTN as this backend.
    vllm_names=frozenset({"FLASH_ATTN"}),
    # attention/fa3_v1.py: refuses a sliding window; caches are paged, so no encoder-decoder.
    kinds=frozenset({Kind.FULL_ATTENTION}),
    # vllm-ascend's user guide, flash_attention.md: float16, bfloat16; no FP8.
    model_dtypes=_HALF_DTYPES,
    kv_cache_dtypes=_HALF_DTYPES,
    # attention/attention_v1.py: same cache writes as fused_infer_attention. flash-attention: 256.
    head_sizes=HeadSizes(multiple_of=16, maximum=256),
    # vllm-ascend's user guide, flash_attention.md.
    generations=frozenset({DeviceGeneration.A2, DeviceGeneration.A3}),
    rank=20,
    # attention/fa3_v1.py: softcap and attention_chunk are always 0; sinks and the causal flag of
    # the metadata are not looked at, and values are viewed with the head size of keys. Keys are
    # read from the cache, whoever wrote them.
    computes=frozenset({"kv_sharing_target_layer_name"}),
    non_causal=False,
    # casting_implementation
    casts_to_cache=True,
    # attention/fa3_v1.py: refuses FULL_DECODE_ONLY; the guide asks for piecewise graphs.
    graphs=GraphSupport.NEVER,
    # platform.py: vllm-ascend takes it only for batch invariance; fa3_v1.py: num_splits is 1.
    batch_invariant_modules=frozenset(),
    # attention/fa3_v1.py: imported at the top.
    required_modules=frozenset({"flash_attn_npu_v3"}),
    notes=(
        "given the whole batch in one call: vllm-ascend's own split is wrong for a verify step",
    ),
)

MLA = BackendEntry(
    name="mla",
    class_path="vllm_ascend.attention.mla_v1:AscendMLABackend",
    aliases=frozenset({"ASCEND_MLA"}),
    kinds=frozenset({Kind.MLA}),
    model_dtypes=_HALF_DTYPES,
    # attention/mla_v1.py: fa_quant keeps int8, on A5 float8.
    kv_cache_dtypes=_HALF_DTYPES | {"int8", "float8_e4m3fn"},
    # npu_fused_infer_attention_score with rope: a latent of 512 and a rope key of 64.
    head_sizes=HeadSizes(exactly=(576,)),
    generations=_ATLAS_800,
    rank=10,
    # attention/mla_v1.py of 0.30.0rc2: sparse mode 0 when the metadata is not causal.
    computes=frozenset({"non_causal_multi_token_decode"}),
    # attention/mla_v1.py: get_cudagraph_support of the builder.
    graphs=GraphSupport.UNIFORM_BATCH,
    notes=("heads are padded to a power of two (attention/mla_v1.py)",),
)

SPARSE_MLA = BackendEntry(
    name="sparse_mla",
    class_path="vllm_ascend.attention.sfa_v1:AscendSFABackend",
    aliases=frozenset({"ASCEND_SFA"}),
    # attention/sfa_v1.py: refuses a layer that has neither an indexer nor another's choice.
    kinds=frozenset({Kind.SPARSE_MLA}),
    model_dtypes=_HALF_DTYPES,
    # attention/sfa_v1.py: packed and indexer caches are int8, on A5 float8.
    kv_cache_dtypes=_HALF_DTYPES | {"int8", "float8_e4m3fn"},
    head_sizes=HeadSizes(exactly=(576,)),
    generations=_ATLAS_800,
    rank=10,
    # attention/sfa_v1.py: get_cudagraph_support of the builder.
    graphs=GraphSupport.UNIFORM_BATCH,
)

COMPRESSED_MLA = BackendEntry(
    name="compressed_mla",
    class_path="vllm_ascend.attention.dsa_v1:AscendDSABackend",
    aliases=frozenset({"ASCEND_DSA"}),
    # models/layer/attention/layer.py, models/deepseek_v4.py: the layers name this class.
    kinds=frozenset({Kind.COMPRESSED_MLA}),
    chosen_by_layer=True,
    model_dtypes=frozenset({"bfloat16"}),
    # models/deepseek_v4.py: bfloat16 keys, float32 compressor states, int8 (A5 float8) indexer.
    kv_cache_dtypes=frozenset({"bfloat16", "float32", "int8", "float8_e4m3fn", "uint8"}),
    # The caches of one layer differ in width (keys, states, indexer); the class sets them.
    head_sizes=HeadSizes(),
    generations=_ATLAS_800,
    rank=10,
    # attention/dsa_v1.py: aclgraph_support of the builder.
    graphs=GraphSupport.UNIFORM_BATCH,
    # attention/dsa_v1.py: get_supported_kernel_block_sizes.
    kernel_block_sizes=(2, 4, 8, 16, 32, 64, 128),
    # worker/model_runner_v1.py: its caches are views over a page of all components.
    takes_strides=True,
)

FUSED_INFER_ATTENTION_310P = BackendEntry(
    name="fused_infer_attention_310p",
    class_path="vllm_ascend._310p.attention.attention_v1:AscendAttentionBackend310",
    aliases=frozenset({"ASCEND_310P"}),
    # _310p/attention/attention_v1.py: windows, sinks and the owner of keys are not looked at.
    kinds=frozenset({Kind.FULL_ATTENTION}),
    # _310p/attention/attention_mask.py: masks are float16.
    model_dtypes=frozenset({"float16"}),
    kv_cache_dtypes=frozenset({"float16"}),
    # _310p/attention/attention_v1.py: caches are cut into columns of 16.
    head_sizes=HeadSizes(multiple_of=16),
    generations=frozenset({DeviceGeneration.ATLAS_310P}),
    rank=10,
    graphs=GraphSupport.ALWAYS,
    # _310p/attention/attention_v1.py: get_supported_kernel_block_sizes.
    kernel_block_sizes=(128, 64),
)


def _state_backend(
    name: str,
    class_path: str,
    generations: frozenset[DeviceGeneration] = _ALL_GENERATIONS,
    graphs: GraphSupport = GraphSupport.UNIFORM_BATCH,
) -> BackendEntry:
    """An entry for layers that keep a state: their class names the backend (get_attn_backend)."""
    return BackendEntry(
        name=name,
        class_path=class_path,
        kinds=frozenset({Kind.MAMBA}),
        chosen_by_layer=True,
        model_dtypes=_HALF_DTYPES | {"float32"},
        kv_cache_dtypes=_HALF_DTYPES | {"float32"},
        head_sizes=HeadSizes(),
        generations=generations,
        rank=10,
        graphs=graphs,
        # A state has no tokens to cut into kernel blocks: one block holds one state.
        kernel_block_sizes=(1,),
    )


# ops/gdn.py and _310p/ops/fla/gdn_310.py name these classes.
GATED_DELTA_NET = _state_backend(
    "gated_delta_net", "vllm_ascend.ops.gdn_attn_builder:AscendGDNAttentionBackend", _ATLAS_800
)
GATED_DELTA_NET_310P = _state_backend(
    "gated_delta_net_310p",
    "vllm_ascend._310p.ops.gdn_attn_builder_310:AscendGDNAttentionBackend310",
    frozenset({DeviceGeneration.ATLAS_310P}),
)
# vllm/v1/attention/backends/registry.py, MambaAttentionBackendEnum: vLLM's own metadata builders.
MAMBA_1 = _state_backend("mamba_1", "vllm.v1.attention.backends.mamba1_attn:Mamba1AttentionBackend")
MAMBA_2 = _state_backend("mamba_2", "vllm.v1.attention.backends.mamba2_attn:Mamba2AttentionBackend")
SHORT_CONVOLUTION = _state_backend(
    "short_convolution", "vllm.v1.attention.backends.short_conv_attn:ShortConvAttentionBackend"
)
LINEAR_ATTENTION = _state_backend(
    "linear_attention",
    "vllm.v1.attention.backends.linear_attn:LinearAttentionBackend",
    # vllm/v1/attention/backends/linear_attn.py: decode of one token only.
    graphs=GraphSupport.SINGLE_TOKEN_DECODE,
)

HIDDEN_STATE_CACHE = BackendEntry(
    name="hidden_state_cache",
    class_path="vllm.model_executor.models.extract_hidden_states:CacheOnlyAttentionBackend",
    kinds=frozenset({Kind.HIDDEN_STATE}),
    chosen_by_layer=True,
    # vllm/model_executor/models/extract_hidden_states.py.
    model_dtypes=_HALF_DTYPES | {"float32"},
    kv_cache_dtypes=_HALF_DTYPES | {"float32"},
    head_sizes=HeadSizes(),
    generations=_ALL_GENERATIONS,
    rank=10,
    # It computes nothing, so there is nothing that a batch could change.
    batch_invariant_modules=frozenset(),
    # worker/model_runner_v1.py: a view over padded pages; it is written and read by index.
    takes_strides=True,
)

ASCEND_BACKENDS: tuple[BackendEntry, ...] = (
    FUSED_INFER_ATTENTION,
    FLASH_ATTENTION_3,
    MLA,
    SPARSE_MLA,
    COMPRESSED_MLA,
    FUSED_INFER_ATTENTION_310P,
    GATED_DELTA_NET,
    GATED_DELTA_NET_310P,
    MAMBA_1,
    MAMBA_2,
    SHORT_CONVOLUTION,
    LINEAR_ATTENTION,
    HIDDEN_STATE_CACHE,
)
