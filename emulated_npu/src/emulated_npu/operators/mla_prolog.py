# SPDX-License-Identifier: Apache-2.0
"""npu_mla_prolog_v2: what a decoding step of MLA does before its attention, in one operator."""

from __future__ import annotations

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.cache import write_slots_fractal
from emulated_npu.operators.norm import normalise
from emulated_npu.operators.quantization import int8_product, quantise_rows
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    require,
    require_contiguous,
    require_dtype,
    require_multiple,
    require_shape,
)
from emulated_npu.operators.rope import deinterleave, rotate_half

LATENT_SIZE = 512
HEAD_SIZE = 128
ROPE_SIZE = 64
BLOCK_SIZE = 128
HEADS = (1, 2, 4, 8, 16, 32, 64, 128)
INT8_WIDTH, HALF_WIDTH = 32, 16
"""Elements of a row that lie beside each other in a block of the NZ form."""

PrologResult = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@operator(
    "npu_mla_prolog_v2",
    source="op-plugin docs: torch_npu.npu_mla_prolog_v2, full quantisation with a quantised cache; "
    "that query_rope comes divided by both scales of a score: the kernel in CANN's ops-transformer",
    limits="""token_x (T, He) int8; weights int8; weight_uk, gammas, cos, sin and kr_cache bfloat16;
    kv_cache int8; 1, 2, 4 to 128 heads of 128 + 64 elements, latents of 512; blocks of 128 tokens;
    cache_mode PA_NZ. He and Hcq are documented as 7168 and 1536; here any multiple of 32 is taken,
    so that small models run. cache_index -1 is skipped, as vllm-ascend pads replayed steps with
    it.""",
    missing="token_x of 3 dimensions, bfloat16 token_x or weights, quant_scale_ckr, cache_mode "
    "PA_BSND",
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
) -> PrologResult:
    """Queries of T tokens in latent space, and their latents and rotated keys into two caches.

    weight_dq (He, Hcq), weight_uq_qr (Hcq, N * 192), weight_uk (N, 128, 512), weight_dkv_kr
    (He, 576); scales: of x (T, 1), of each output of a matrix (1, outputs), of latents (1, 512).

    Returns query int8 (T, N, 512), query_rope bfloat16 (T, N, 64), both caches, which are written
    in place, and the float32 scales (T, N, 1) of the query.
    """
    given = (dequant_scale_x, dequant_scale_w_dq, dequant_scale_w_uq_qr, dequant_scale_w_dkv_kr)
    scales = [scale for scale in (*given, quant_scale_ckv) if scale is not None]
    quantised = token_x.dtype == torch.int8 and len(scales) == 5 and quant_scale_ckr is None
    if not quantised or token_x.dim() != 2 or cache_mode != "PA_NZ":
        raise NotImplementedError(
            "emulated NPU: npu_mla_prolog_v2 takes int8 rows (T, He) with all scales but "
            f"quant_scale_ckr and cache_mode PA_NZ; it was given {token_x.dtype} "
            f"{tuple(token_x.shape)} and cache_mode {cache_mode}"
        )
    x_scale, dq_scale, uq_scale, dkv_scale, latent_scale = scales
    cos, sin = rope_cos.float().unsqueeze(1), rope_sin.float().unsqueeze(1)
    down = _product(token_x, weight_dq, x_scale, dq_scale)
    compressed = normalise(down, 1, rmsnorm_epsilon_cq)[0] * rmsnorm_gamma_cq.float()
    if smooth_scales_cq is not None:
        compressed = compressed * smooth_scales_cq.float()
    rows, row_scale = quantise_rows(compressed)
    heads = _product(rows, weight_uq_qr, row_scale.unsqueeze(-1), uq_scale)
    query, rope, query_scale = _queries(heads.to(torch.bfloat16), weight_uk, cos, sin)
    query_rope = (rope * latent_scale[0, 0] / query_scale).to(torch.bfloat16)

    down = _product(token_x, weight_dkv_kr, x_scale, dkv_scale)
    latent, key = down.split([LATENT_SIZE, ROPE_SIZE], -1)
    latent = normalise(latent, 1, rmsnorm_epsilon_ckv)[0] * rmsnorm_gamma_ckv.float()
    latent = (latent * latent_scale).round().clamp(-128, 127)
    _write(latent, kv_cache, cache_index, INT8_WIDTH)
    _write(_rotated(key.unsqueeze(1), cos, sin), kr_cache, cache_index, HALF_WIDTH)
    return query, query_rope, kv_cache, kr_cache, query_scale


def _queries(
    heads: torch.Tensor, weight_uk: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries int8 (T, N, 512) of bfloat16 rows (T, N * 192), their rotated rope parts, float32
    (T, N, 64), and their scales (T, N, 1). A scale of 0 is that of a row of zeros."""
    heads = heads.unflatten(1, (weight_uk.shape[0], HEAD_SIZE + ROPE_SIZE)).float()
    plain, rope = heads.split([HEAD_SIZE, ROPE_SIZE], -1)
    latent = torch.einsum("tnd,ndl->tnl", plain, weight_uk.float()).to(torch.bfloat16)
    query, scale = quantise_rows(latent.float())
    return query, _rotated(rope, cos, sin).to(torch.bfloat16).float(), scale.unsqueeze(-1)


def _product(
    rows: torch.Tensor, matrix: torch.Tensor, row_scale: torch.Tensor, scale: torch.Tensor
) -> torch.Tensor:
    """int8 rows times an int8 matrix, float32 (rows, columns)."""
    return int8_product(rows, matrix).float() * scale.float() * row_scale.float()


def _rotated(rope: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs (0, 1), (2, 3), ... become halves, then are rotated, as in npu_interleave_rope."""
    halves = deinterleave(rope)
    return halves * cos + rotate_half(halves) * sin


def _write(rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, width: int) -> None:
    num_blocks, block_size = cache.shape[:2]
    write_slots_fractal(rows, cache.view(num_blocks, -1, block_size, width), slots)


@npu_mla_prolog_v2.check
def _check(given: Arguments) -> None:
    tokens, width = given.token_x.shape[0], given.token_x.shape[-1]
    low_rank, heads = given.weight_dq.shape[-1], given.weight_uk.shape[0]
    require_multiple("He, token_x's last size,", width, 32)
    require_multiple("Hcq, weight_dq's last size,", low_rank, 32)
    require(heads in HEADS, f"{heads} heads; allowed: {', '.join(map(str, HEADS))}")
    matrices = {
        "weight_dq": (given.weight_dq, (width, low_rank)),
        "weight_uq_qr": (given.weight_uq_qr, (low_rank, heads * (HEAD_SIZE + ROPE_SIZE))),
        "weight_dkv_kr": (given.weight_dkv_kr, (width, LATENT_SIZE + ROPE_SIZE)),
    }
    for name, (matrix, shape) in matrices.items():
        require_dtype(name, matrix, (torch.int8,))
        require_shape(name, matrix, shape)
    halves = {
        "weight_uk": (given.weight_uk, (heads, HEAD_SIZE, LATENT_SIZE)),
        "rmsnorm_gamma_cq": (given.rmsnorm_gamma_cq, (low_rank,)),
        "rmsnorm_gamma_ckv": (given.rmsnorm_gamma_ckv, (LATENT_SIZE,)),
        "rope_sin": (given.rope_sin, (tokens, ROPE_SIZE)),
        "rope_cos": (given.rope_cos, (tokens, ROPE_SIZE)),
    }
    for name, (tensor, shape) in halves.items():
        require_dtype(name, tensor, (torch.bfloat16,))
        require_shape(name, tensor, shape)
    scales = {
        "dequant_scale_x": (given.dequant_scale_x, (tokens, 1)),
        "dequant_scale_w_dq": (given.dequant_scale_w_dq, (1, low_rank)),
        "dequant_scale_w_uq_qr": (given.dequant_scale_w_uq_qr, (1, matrices["weight_uq_qr"][1][1])),
        "dequant_scale_w_dkv_kr": (given.dequant_scale_w_dkv_kr, (1, LATENT_SIZE + ROPE_SIZE)),
        "quant_scale_ckv": (given.quant_scale_ckv, (1, LATENT_SIZE)),
        "smooth_scales_cq": (given.smooth_scales_cq, (1, low_rank)),
    }
    for name, (scale, shape) in scales.items():
        if scale is not None:
            require_dtype(name, scale, (torch.float32,))
            require_shape(name, scale, shape)
    require_dtype("cache_index", given.cache_index, (torch.int64,))
    require_shape("cache_index", given.cache_index, (tokens,))
    _check_caches(given)


def _check_caches(given: Arguments) -> None:
    caches = {
        "kv_cache": (given.kv_cache, torch.int8, LATENT_SIZE),
        "kr_cache": (given.kr_cache, torch.bfloat16, ROPE_SIZE),
    }
    for name, (cache, dtype, size) in caches.items():
        require_dtype(name, cache, (dtype,))
        require_shape(name, cache, (None, BLOCK_SIZE, 1, size))
        require_contiguous(name, cache)
    require(
        given.kv_cache.shape[0] == given.kr_cache.shape[0],
        f"kv_cache has {given.kv_cache.shape[0]} blocks, kr_cache {given.kr_cache.shape[0]}",
    )
