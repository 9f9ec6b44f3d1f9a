# SPDX-License-Identifier: Apache-2.0
"""npu_fused_infer_attention_score and its second version, with .out and workspace queries."""

from __future__ import annotations

from typing import Any

import torch

from emulated_npu.operators.attention_call import (
    V1_MISSING,
    V1_NAMES,
    V2_MISSING,
    V2_NAMES,
    FusedInferCall,
    compute,
    options_of,
    read_call,
)
from emulated_npu.operators.attention_limits import check_call
from emulated_npu.operators.registry import OperatorArgumentError, operator

V1 = "npu_fused_infer_attention_score"
V2 = "npu_fused_infer_attention_score_v2"
V1_OPTIONS = options_of(V1_NAMES, V1_MISSING)
V2_OPTIONS = options_of(V2_NAMES, V2_MISSING)
V1_HOST_ARGUMENTS = ("actual_seq_lengths", "actual_seq_lengths_kv")
V2_HOST_ARGUMENTS = ("actual_seq_qlen", "actual_seq_kvlen")

LIMITS = """float16 or bfloat16, one dtype; heads at most 256, a multiple of the kv heads, ratio at
most 64. Packed layouts (TND, NTD, NTD_TND): head size 64, 128, 192 or 256, blocks a multiple of
16 up to 1024, cumulative query lengths that end at T. Other layouts: head size a multiple of 16
up to 512, blocks a multiple of 128 up to 512. Rope: head size 128 or 512 and rope size 64; with
512 one kv head, 1 to 128 query heads (a power of two), at most 16 queries a request. sparse_mode
2, 3, 4 take the 2048 x 2048 upper triangular mask. Hardware is followed where vllm-ascend 0.23.0
shows more than is documented: head size 256 and grouped heads of size 64 in TND; BNSD_NBSD with
one query; a log-sum-exp with head size 512 in BSND, BNSD and TND (documented as not available, but
vllm-ascend's context parallelism merges it), with a full mask too; strided query, query_rope, and
key and value that are not a cache; where vllm-ascend documents it (0.30, "Non-Contiguous KV
Cache"), a cache without rope with blocks apart; pre_tokens, documented to have no effect for one
query, has one in TND. pre_tokens is inclusive: a band keeps
pre_tokens + 1 keys. A row without keys gives zeros and a log-sum-exp of minus infinity (not
documented)."""
V1_LIMITS = (
    LIMITS
    + """ key_antiquant_scale and value_antiquant_scale (per channel, of the query's
dtype): query bfloat16, cache int8 in NZ, head size 128, BSH, BSND or BNSD, inner_precise 1; one
query with sparse_mode 0, 2 to 16 with 3. Hardware is followed for block tables and head counts."""
)
V2_LIMITS = (
    LIMITS
    + """ learnable_sink: bfloat16, (heads,), TND or NTD_TND, value size at most 128. Query, key and
value int8 (query_quant_mode 3): head size 512 with rope parts in bfloat16, NZ caches in blocks of
128, BSND, BSND_NBSD, TND or TND_NTD (the last two as vllm-ascend 0.23.0 calls it; documented
without), one scale for each query and head, one for all keys and one for all values, float32."""
)
MISSING = "other quantization, pse_shift, left padding, shared prefix, tensor lists"


def _v1_call(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
) -> FusedInferCall:
    arguments = {"query": query, "key": key, "value": value, **options}
    return read_call(V1_NAMES, V1_MISSING, arguments)


def _v2_call(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
) -> FusedInferCall:
    arguments = {"query": query, "key": key, "value": value, **options}
    call = read_call(V2_NAMES, V2_MISSING, arguments)
    if call.quantised and not call.fully_quantised:
        raise NotImplementedError(
            f"emulated NPU: {V2} with dequant_scale_key and without dequant_scale_query is not "
            f"emulated; give both, or call {V1}"
        )
    return call


@operator(
    V1,
    source="op-plugin docs: torch_npu.npu_fused_infer_attention_score",
    limits=V1_LIMITS,
    missing=MISSING,
    host_arguments=V1_HOST_ARGUMENTS,
    options=V1_OPTIONS,
)
def npu_fused_infer_attention_score(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in inference; `options` are V1_NAMES. Returns the output and the log-sum-exp."""
    return compute(_v1_call(query, key, value, options))


@npu_fused_infer_attention_score.check
def _check_v1(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
) -> None:
    check_call(_v1_call(query, key, value, options))


@operator(
    V2,
    source="op-plugin docs: torch_npu.npu_fused_infer_attention_score_v2",
    limits=V2_LIMITS,
    missing=f"{MISSING}, sparse_mode 9",
    host_arguments=V2_HOST_ARGUMENTS,
    options=V2_OPTIONS,
)
def npu_fused_infer_attention_score_v2(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in inference; `options` are V2_NAMES. Returns the output and the log-sum-exp."""
    return compute(_v2_call(query, key, value, options))


@npu_fused_infer_attention_score_v2.check
def _check_v2(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
) -> None:
    check_call(_v2_call(query, key, value, options))


def _write_out(
    results: tuple[torch.Tensor, torch.Tensor], out: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Copy results into `out`; a log-sum-exp that was not asked for leaves its place alone."""
    output, log_sum = results
    pairs = [(output, out[0])]
    if log_sum.numel() > 1:
        pairs.append((log_sum, out[1]))
    for result, target in pairs:
        if result.numel() != target.numel():
            raise OperatorArgumentError(
                f"out has shape {tuple(target.shape)}; the result is {tuple(result.shape)}"
            )
        target.copy_(result.view(target.shape))
    return out


@operator(
    V1,
    overload="out",
    source="op-plugin test: test_npu_fused_infer_attention_score_with_workspace",
    limits="As the operator itself. The workspace is not used.",
    missing=MISSING,
    host_arguments=V1_HOST_ARGUMENTS,
    options=V1_OPTIONS,
    writes=("out",),
)
def npu_fused_infer_attention_score_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    out: list[torch.Tensor],
    workspace: torch.Tensor | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """As npu_fused_infer_attention_score, into out=[output, log-sum-exp]."""
    return _write_out(compute(_v1_call(query, key, value, options)), out)


@npu_fused_infer_attention_score_out.check
def _check_v1_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
) -> None:
    check_call(_v1_call(query, key, value, options))


@operator(
    V2,
    overload="out",
    source="op-plugin test: test_npu_fused_infer_attention_score_v2_with_workspace",
    limits="As the operator itself. The workspace is not used.",
    missing=MISSING,
    host_arguments=V2_HOST_ARGUMENTS,
    options=V2_OPTIONS,
    writes=("out",),
)
def npu_fused_infer_attention_score_v2_out(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    out: list[torch.Tensor],
    workspace: torch.Tensor | None = None,
    **options: Any,
) -> list[torch.Tensor]:
    """As npu_fused_infer_attention_score_v2, into out=[output, log-sum-exp]."""
    return _write_out(compute(_v2_call(query, key, value, options)), out)


@npu_fused_infer_attention_score_v2_out.check
def _check_v2_out(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
) -> None:
    check_call(_v2_call(query, key, value, options))


@operator(
    f"_{V1}_get_max_workspace",
    source="op-plugin test: test_npu_fused_infer_attention_score_with_workspace",
    limits="Gives one byte: the emulation needs no workspace, so its size says nothing.",
    host_arguments=V1_HOST_ARGUMENTS,
    options=V1_OPTIONS,
    launches=False,
)
def fused_infer_workspace(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> torch.Tensor:
    """A workspace for the .out form."""
    _v1_call(query, key, value, options)
    return torch.empty(1, dtype=torch.uint8)


@operator(
    f"_{V2}_get_max_workspace",
    source="op-plugin test: test_npu_fused_infer_attention_score_v2_with_workspace",
    limits="Gives one byte: the emulation needs no workspace, so its size says nothing.",
    host_arguments=V2_HOST_ARGUMENTS,
    options=V2_OPTIONS,
    launches=False,
)
def fused_infer_v2_workspace(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any
) -> torch.Tensor:
    """A workspace for the .out form of the second version."""
    _v2_call(query, key, value, options)
    return torch.empty(1, dtype=torch.uint8)
