# SPDX-License-Identifier: Apache-2.0
"""npu_mla_prolog_v2, and its third version: mla_prolog of the package cann_ops_transformer.

Of the package no documentation was found; vllm-ascend 0.30.0rc2 passes it arguments by the names of
torch_npu.npu_mla_prolog_v3 and reads that operator's results.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.mla_prolog_core import LATENT_SIZE, Prolog, check_prolog
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import require, require_shape

PACKAGE = "cann_ops_transformer"
Five = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
LIMITS = """token_x (T, He) int8; weights int8; weight_uk, gammas, cos, sin and kr_cache bfloat16;
kv_cache int8; 1, 2, 4 to 128 heads of 128 + 64 elements, latents of 512; blocks of 128 tokens;
cache_mode PA_NZ. He and Hcq are documented as 7168 and 1536; here any multiple of 32 is taken, so
that small models run. cache_index -1 is skipped, as vllm-ascend pads replayed steps with it."""
MISSING = "token_x of 3 dimensions, bfloat16 token_x or weights, quant_scale_ckr, other cache modes"
PER_TENSOR, PER_TOKEN_AND_HEAD, ALL_WEIGHTS = 1, 1, 2


@operator(
    "npu_mla_prolog_v2",
    source="op-plugin docs: torch_npu.npu_mla_prolog_v2",
    limits=LIMITS,
    missing=MISSING,
    writes=("kv_cache", "kr_cache"),
)
def npu_mla_prolog_v2(
    token_x: torch.Tensor,
    weight_dq: torch.Tensor,
    weight_uq_qr: torch.Tensor,
    weight_uk: torch.Tensor,
    weight_dkv_kr: torch.Tensor,
    rmsnorm_gamma_cq: torch.Tensor,
    rmsnorm_gamma_ckv: torch.Tensor,
    rope_sin: torch.Tensor,
    rope_cos: torch.Tensor,
    cache_index: torch.Tensor,
    kv_cache: torch.Tensor,
    kr_cache: torch.Tensor,
    *,
    dequant_scale_x: torch.Tensor | None = None,
    dequant_scale_w_dq: torch.Tensor | None = None,
    dequant_scale_w_uq_qr: torch.Tensor | None = None,
    dequant_scale_w_dkv_kr: torch.Tensor | None = None,
    quant_scale_ckv: torch.Tensor | None = None,
    quant_scale_ckr: torch.Tensor | None = None,
    smooth_scales_cq: torch.Tensor | None = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
) -> Five:
    """Queries of T tokens in latent space; their latents and rotated keys go into the caches.

    Shapes: see ``Prolog``. Returns query int8 (T, N, 512), query_rope bfloat16 (T, N, 64), both
    caches, which are written in place, and the float32 scales (T, N, 1) of the query.
    """
    prolog = _read("npu_mla_prolog_v2", **locals())
    prolog.write()
    query, rope, scale = prolog.queries()
    return query, rope, kv_cache, kr_cache, scale


@npu_mla_prolog_v2.check
def _check_v2(given: Arguments) -> None:
    prolog = _read("npu_mla_prolog_v2", **vars(given))
    check_prolog(prolog)
    require_shape("quant_scale_ckv", prolog.quant_scale_ckv, (1, LATENT_SIZE))


@operator(
    "mla_prolog",
    namespace=PACKAGE,
    source="op-plugin docs: torch_npu.npu_mla_prolog_v3",
    limits=LIMITS + " weight_quant_mode 2, kv_cache_quant_mode 1, query_quant_mode 1.",
    missing=MISSING + ", other kinds of quantisation, query_norm, scales of queries and keys",
    writes=("kv_cache", "kr_cache"),
)
def mla_prolog(
    token_x: torch.Tensor,
    weight_dq: torch.Tensor,
    weight_uq_qr: torch.Tensor,
    weight_uk: torch.Tensor,
    weight_dkv_kr: torch.Tensor,
    rmsnorm_gamma_cq: torch.Tensor,
    rmsnorm_gamma_ckv: torch.Tensor,
    rope_sin: torch.Tensor,
    rope_cos: torch.Tensor,
    kv_cache: torch.Tensor,
    kr_cache: torch.Tensor,
    *,
    cache_index: torch.Tensor | None = None,
    dequant_scale_x: torch.Tensor | None = None,
    dequant_scale_w_dq: torch.Tensor | None = None,
    dequant_scale_w_uq_qr: torch.Tensor | None = None,
    dequant_scale_w_dkv_kr: torch.Tensor | None = None,
    quant_scale_ckv: torch.Tensor | None = None,
    smooth_scales_cq: torch.Tensor | None = None,
    rmsnorm_epsilon_cq: float = 1e-05,
    rmsnorm_epsilon_ckv: float = 1e-05,
    cache_mode: str = "PA_BSND",
    weight_quant_mode: int = 0,
    kv_cache_quant_mode: int = 0,
    query_quant_mode: int = 0,
) -> Five:
    """As ``npu_mla_prolog_v2``; the latents have one scale, (1,) or (1, 1).

    Returns query, query_rope and its scales, and two empty tensors, where query_norm and its scales
    would be.
    """
    prolog = _read("mla_prolog", **locals())
    prolog.write()
    return (*prolog.queries(), torch.empty(0), torch.empty(0))


@mla_prolog.check
def _check_v3(given: Arguments) -> None:
    prolog = _read("mla_prolog", **vars(given))
    check_prolog(prolog)
    require(
        prolog.quant_scale_ckv.numel() == 1,
        f"quant_scale_ckv has shape {tuple(prolog.quant_scale_ckv.shape)}; it must hold one scale",
    )


def _read(name: str, **given: Any) -> Prolog:
    """The call. Errors: NotImplementedError for a kind of quantisation that is not emulated."""
    modes = (
        given.get("weight_quant_mode", ALL_WEIGHTS),
        given.get("kv_cache_quant_mode", PER_TENSOR),
        given.get("query_quant_mode", PER_TOKEN_AND_HEAD),
    )
    arguments = {field.name: given[field.name] for field in fields(Prolog)}
    lacking = [key for key, value in arguments.items() if value is None]
    token_x = given["token_x"]
    if (
        modes != (ALL_WEIGHTS, PER_TENSOR, PER_TOKEN_AND_HEAD)
        or given.get("quant_scale_ckr") is not None
        or {*lacking} - {"smooth_scales_cq"}
        or (token_x.dtype, token_x.dim()) != (torch.int8, 2)
        or given["cache_mode"] != "PA_NZ"
    ):
        raise NotImplementedError(
            f"emulated NPU: {name} takes int8 rows (T, He) with all scales but quant_scale_ckr and "
            f"cache_mode PA_NZ; it was given {token_x.dtype} {tuple(token_x.shape)}, cache_mode "
            f"{given['cache_mode']} and quantisation {modes}, without {', '.join(lacking)}"
        )
    return Prolog(**arguments)
