# SPDX-License-Identifier: Apache-2.0
"""npu_kv_rmsnorm_rope_cache: norm, rotate and cache the latent of MLA in one operator."""

from __future__ import annotations

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.cache import check_slots, write_slots
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    HALF_FLOATS,
    require,
    require_absent,
    require_contiguous,
    require_dtype,
    require_same_dtype,
    require_shape,
)
from emulated_npu.unwritten import undefined

LATENT_SIZE = 512
ROPE_SIZE = 64
FRACTAL_WIDTH = 16  # elements of a row that lie together in the NZ form
PAGED_MODES = ("PA", "PA_BNSD", "PA_NZ")

KvResult = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


@operator(
    "npu_kv_rmsnorm_rope_cache",
    source="op-plugin docs: torch_npu.npu_kv_rmsnorm_rope_cache",
    limits="""float16 or bfloat16, one dtype; kv (B, 1, S, 576), gamma (512,), cos and sin
    (B, 1, S, 64); index int64 (B * S,), -1 is skipped (op-plugin's golden test); caches
    (blocks, block size, 1, 64 and 512), contiguous; cache_mode PA, PA_BNSD, PA_NZ.""",
    missing="cache_mode Norm, PA_BLK_BNSD, PA_BLK_NZ; quantization; v",
    writes=("k_cache", "ckv_cache"),
)
def npu_kv_rmsnorm_rope_cache(
    kv: torch.Tensor,
    gamma: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    index: torch.Tensor,
    k_cache: torch.Tensor,
    ckv_cache: torch.Tensor,
    *,
    k_rope_scale: torch.Tensor | None = None,
    c_kv_scale: torch.Tensor | None = None,
    k_rope_offset: torch.Tensor | None = None,
    c_kv_offset: torch.Tensor | None = None,
    v: torch.Tensor | None = None,
    epsilon: float = 1e-5,
    cache_mode: str = "Norm",
    is_output_kv: bool = False,
) -> KvResult:
    """kv is the latent (512) and the rope part (64), whose pairs are interleaved.

    Returns k_cache (rope), ckv_cache (latent), both written in place, the rotated rope part
    (B, 1, S, 64) and the normed latent (B, 1, S, 512), undefined without is_output_kv.
    """
    require_absent("npu_kv_rmsnorm_rope_cache", v=v)
    scales = (k_rope_scale, c_kv_scale, k_rope_offset, c_kv_offset)
    if any(scale is not None for scale in scales):
        raise NotImplementedError(
            "emulated NPU: npu_kv_rmsnorm_rope_cache with quantization is not emulated; call it "
            "without scales and offsets"
        )
    if cache_mode not in PAGED_MODES:
        raise NotImplementedError(
            f"emulated NPU: npu_kv_rmsnorm_rope_cache with cache_mode {cache_mode} is not "
            f"emulated; use one of {', '.join(PAGED_MODES)}"
        )
    latent, rope = kv.float().split([kv.shape[-1] - cos.shape[-1], cos.shape[-1]], -1)
    normed = latent * torch.rsqrt(latent.square().mean(-1, keepdim=True) + epsilon)
    normed = (normed * gamma.float()).to(kv.dtype)
    rotated = _rotate_interleaved(rope, cos.float(), sin.float()).to(kv.dtype)
    write = _write_fractal if cache_mode == "PA_NZ" else write_slots
    write(rotated.reshape(-1, rotated.shape[-1]), k_cache, index)
    write(normed.reshape(-1, normed.shape[-1]), ckv_cache, index)
    if not is_output_kv:
        rotated, normed = undefined(rotated), undefined(normed)
    return k_cache, ckv_cache, rotated, normed


def _rotate_interleaved(rope: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs (0, 1), (2, 3), ... become halves, then are rotated: the result is in halves."""
    first, second = rope[..., 0::2], rope[..., 1::2]
    halves = torch.cat((first, second), -1)
    turned = torch.cat((-second, first), -1)
    return halves * cos + turned * sin


def _write_fractal(rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor) -> None:
    """Write into the NZ form: a block holds (features / 16, block size, 16)."""
    num_blocks, block_size = cache.shape[:2]
    slots, used = check_slots(slots, num_blocks * block_size)
    rows = rows.unflatten(1, (-1, FRACTAL_WIDTH))
    if used is not None:
        slots, rows = slots[used], rows[used]
    blocks = cache.view(num_blocks, -1, block_size, FRACTAL_WIDTH)
    blocks[slots // block_size, :, slots % block_size] = rows


@npu_kv_rmsnorm_rope_cache.check
def _check(given: Arguments) -> None:
    require_dtype("kv", given.kv, HALF_FLOATS)
    require_same_dtype(
        kv=given.kv,
        gamma=given.gamma,
        cos=given.cos,
        sin=given.sin,
        k_cache=given.k_cache,
        ckv_cache=given.ckv_cache,
    )
    require_shape("kv", given.kv, (None, 1, None, LATENT_SIZE + ROPE_SIZE))
    batch_size, _, width, _ = given.kv.shape
    require_shape("gamma", given.gamma, (LATENT_SIZE,))
    require_shape("cos", given.cos, (batch_size, 1, width, ROPE_SIZE))
    require_shape("sin", given.sin, (batch_size, 1, width, ROPE_SIZE))
    require_dtype("index", given.index, (torch.int64,))
    require_shape("index", given.index, (batch_size * width,))
    require_shape("k_cache", given.k_cache, (None, None, 1, ROPE_SIZE))
    require_shape("ckv_cache", given.ckv_cache, (*given.k_cache.shape[:3], LATENT_SIZE))
    for name, cache in (("k_cache", given.k_cache), ("ckv_cache", given.ckv_cache)):
        require_contiguous(name, cache)
    capacity = given.k_cache.shape[0] * given.k_cache.shape[1]
    require(
        batch_size * width <= capacity,
        f"{batch_size * width} tokens for a cache of {capacity} slots",
    )
