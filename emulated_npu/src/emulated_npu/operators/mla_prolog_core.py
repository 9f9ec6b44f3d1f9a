# SPDX-License-Identifier: Apache-2.0
"""What a decoding step of MLA does before its attention, with 8 bits throughout.

Source: op-plugin docs of torch_npu.npu_mla_prolog_v2 and v3, full quantisation with a quantised
cache. That the rotated part of a query comes divided by both scales of a score is not documented:
the kernel in CANN's ops-transformer does so.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from emulated_npu.operators.cache import write_slots_fractal
from emulated_npu.operators.norm import normalise
from emulated_npu.operators.quantization import int8_product, quantise_rows
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


@dataclass(frozen=True)
class Prolog:
    """The arguments of one call, by the names of the documentation; T tokens.

    token_x int8 (T, He), weight_dq int8 (He, Hcq), weight_uq_qr int8 (Hcq, N * 192), weight_uk
    bfloat16 (N, 128, 512), weight_dkv_kr int8 (He, 576); scales float32: of x (T, 1), of each
    output of a matrix (1, outputs), of latents (1, 512), (1, 1) or (1,); smooth_scales_cq (1, Hcq).
    """

    token_x: torch.Tensor
    weight_dq: torch.Tensor
    weight_uq_qr: torch.Tensor
    weight_uk: torch.Tensor
    weight_dkv_kr: torch.Tensor
    rmsnorm_gamma_cq: torch.Tensor
    rmsnorm_gamma_ckv: torch.Tensor
    rope_sin: torch.Tensor
    rope_cos: torch.Tensor
    cache_index: torch.Tensor
    kv_cache: torch.Tensor
    kr_cache: torch.Tensor
    dequant_scale_x: torch.Tensor
    dequant_scale_w_dq: torch.Tensor
    dequant_scale_w_uq_qr: torch.Tensor
    dequant_scale_w_dkv_kr: torch.Tensor
    quant_scale_ckv: torch.Tensor
    smooth_scales_cq: torch.Tensor | None
    rmsnorm_epsilon_cq: float
    rmsnorm_epsilon_ckv: float

    def queries(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """query int8 (T, N, 512), query_rope bfloat16 (T, N, 64), float32 scales (T, N, 1).

        A query of zeros has scale 0, and its rotated part is divided by it.
        """
        compressed = self._product(self.weight_dq, self.dequant_scale_w_dq)
        compressed = normalise(compressed, 1, self.rmsnorm_epsilon_cq)[0]
        compressed = compressed * self.rmsnorm_gamma_cq.float()
        if self.smooth_scales_cq is not None:
            compressed = compressed * self.smooth_scales_cq.float()
        rows, row_scale = quantise_rows(compressed)
        heads = int8_product(rows, self.weight_uq_qr).float() * row_scale.unsqueeze(-1)
        heads = (heads * self.dequant_scale_w_uq_qr).to(torch.bfloat16).float()
        heads = heads.unflatten(1, (self.weight_uk.shape[0], HEAD_SIZE + ROPE_SIZE))
        plain, rope = heads.split([HEAD_SIZE, ROPE_SIZE], -1)
        latent = torch.einsum("tnd,ndl->tnl", plain, self.weight_uk.float()).to(torch.bfloat16)
        query, scale = quantise_rows(latent.float())
        scale = scale.unsqueeze(-1)
        rope = self._rotated(rope).to(torch.bfloat16).float()
        rope = rope * self.quant_scale_ckv.flatten()[0] / scale
        return query, rope.to(torch.bfloat16), scale

    def write(self) -> None:
        """Put latents, in whole numbers, and rotated keys at their slots of the two caches."""
        both = self._product(self.weight_dkv_kr, self.dequant_scale_w_dkv_kr)
        latent, key = both.split([LATENT_SIZE, ROPE_SIZE], -1)
        latent = normalise(latent, 1, self.rmsnorm_epsilon_ckv)[0] * self.rmsnorm_gamma_ckv.float()
        latent = (latent * self.quant_scale_ckv).round().clamp(-128, 127)
        _write(latent, self.kv_cache, self.cache_index, INT8_WIDTH)
        _write(self._rotated(key.unsqueeze(1)), self.kr_cache, self.cache_index, HALF_WIDTH)

    def _product(self, matrix: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """The rows times an int8 matrix, float32 (T, outputs)."""
        return int8_product(self.token_x, matrix).float() * scale * self.dequant_scale_x

    def _rotated(self, rope: torch.Tensor) -> torch.Tensor:
        """Pairs (0, 1), (2, 3), ... become halves, then are rotated, as in npu_interleave_rope."""
        halves = deinterleave(rope)
        cos, sin = self.rope_cos.float().unsqueeze(1), self.rope_sin.float().unsqueeze(1)
        return halves * cos + rotate_half(halves) * sin


def _write(rows: torch.Tensor, cache: torch.Tensor, slots: torch.Tensor, width: int) -> None:
    num_blocks, block_size = cache.shape[:2]
    write_slots_fractal(rows, cache.view(num_blocks, -1, block_size, width), slots)


def check_prolog(given: Prolog) -> None:
    """Raise OperatorArgumentError for what the documentation does not allow."""
    tokens, width = given.token_x.shape
    low_rank, heads = given.weight_dq.shape[-1], given.weight_uk.shape[0]
    require_multiple("He, token_x's last size,", width, 32)
    require_multiple("Hcq, weight_dq's last size,", low_rank, 32)
    require(heads in HEADS, f"{heads} heads; allowed: {', '.join(map(str, HEADS))}")
    outputs = heads * (HEAD_SIZE + ROPE_SIZE), LATENT_SIZE + ROPE_SIZE
    shapes: dict[torch.dtype, dict[str, tuple[int, ...]]] = {
        torch.int8: {
            "weight_dq": (width, low_rank),
            "weight_uq_qr": (low_rank, outputs[0]),
            "weight_dkv_kr": (width, outputs[1]),
        },
        torch.bfloat16: {
            "weight_uk": (heads, HEAD_SIZE, LATENT_SIZE),
            "rmsnorm_gamma_cq": (low_rank,),
            "rmsnorm_gamma_ckv": (LATENT_SIZE,),
            "rope_sin": (tokens, ROPE_SIZE),
            "rope_cos": (tokens, ROPE_SIZE),
        },
        torch.float32: {
            "dequant_scale_x": (tokens, 1),
            "dequant_scale_w_dq": (1, low_rank),
            "dequant_scale_w_uq_qr": (1, outputs[0]),
            "dequant_scale_w_dkv_kr": (1, outputs[1]),
            "smooth_scales_cq": (1, low_rank),
        },
        torch.int64: {"cache_index": (tokens,)},
    }
    for dtype, named in shapes.items():
        for name, shape in named.items():
            tensor = getattr(given, name)
            if tensor is not None:
                require_dtype(name, tensor, (dtype,))
                require_shape(name, tensor, shape)
    require_dtype("quant_scale_ckv", given.quant_scale_ckv, (torch.float32,))
    _check_caches(given)


def _check_caches(given: Prolog) -> None:
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
