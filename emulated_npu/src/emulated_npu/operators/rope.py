# SPDX-License-Identifier: Apache-2.0
"""Rotary position embedding.

Two pairings of the elements of a head exist. `half`: element i turns with element i + D / 2.
`interleave`: element 2i turns with element 2i + 1.
"""

from __future__ import annotations

import torch

from emulated_npu.operators.binding import Arguments
from emulated_npu.operators.registry import operator
from emulated_npu.operators.requirements import (
    FLOATS,
    HALF_FLOATS,
    INTEGERS,
    require,
    require_contiguous,
    require_dtype,
    require_range,
    require_rank,
    require_same_dtype,
    require_shape,
)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """(a, b) -> (-b, a), a and b the halves of the last dimension."""
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def rotate_interleaved(x: torch.Tensor) -> torch.Tensor:
    """(x0, x1, x2, x3, ...) -> (-x1, x0, -x3, x2, ...) along the last dimension."""
    return torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)


def deinterleave(x: torch.Tensor) -> torch.Tensor:
    """(x0, x1, x2, x3, ...) -> (x0, x2, ..., x1, x3, ...) along the last dimension."""
    return torch.cat((x[..., ::2], x[..., 1::2]), -1)


@operator(
    "npu_rotary_mul",
    source="op-plugin docs: torch_npu.npu_rotary_mul (jit_compile=False)",
    limits="3 or 4 dimensions, float16, bfloat16 or float32; last dimension even and below 896; "
    "cos and sin of input's rank, each size 1 or input's.",
)
def npu_rotary_mul(
    input: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str = "half",
    rotate: torch.Tensor | None = None,
) -> torch.Tensor:
    """input * r1 + rotated(input) * r2, with r1 = cos and r2 = sin.

    `rotate`: a (D, D) matrix that replaces the rotation: rotated(x) = x @ rotate.
    """
    wide = input.float()
    if rotate is not None:
        rotated = wide @ rotate.float()
    else:
        rotated = rotate_half(wide) if rotary_mode == "half" else rotate_interleaved(wide)
    return (wide * r1.float() + rotated * r2.float()).to(input.dtype)


@npu_rotary_mul.check
def _check_rotary_mul(
    input: torch.Tensor,
    r1: torch.Tensor,
    r2: torch.Tensor,
    rotary_mode: str,
    rotate: torch.Tensor | None,
) -> None:
    require(
        rotary_mode in ("half", "interleave"),
        f"rotary_mode is {rotary_mode!r}; it must be 'half' or 'interleave'",
    )
    require_rank("input", input, (3, 4))
    require_dtype("input", input, FLOATS)
    head_size = input.shape[-1]
    require(
        head_size % 2 == 0 and head_size < 896,
        f"input's last dimension is {head_size}; it must be even and below 896",
    )
    for name, tensor in (("r1", r1), ("r2", r2)):
        require_dtype(name, tensor, FLOATS)
        require_rank(name, tensor, input.dim())
        fits = all(a in (1, b) for a, b in zip(tensor.shape[:-1], input.shape[:-1], strict=True))
        require(
            fits and tensor.shape[-1] == head_size,
            f"{name} has shape {tuple(tensor.shape)}; each size must be 1 or that of input, "
            f"{tuple(input.shape)}, and the last one that of input",
        )
    if rotate is not None:
        require_shape("rotate", rotate, (head_size, head_size))


@operator(
    "npu_interleave_rope",
    source="op-plugin docs: torch_npu.npu_interleave_rope",
    limits="float16 or bfloat16, (B, N, S, 64), cos and sin (B, 1, 1 or S, 64). The documentation "
    "refuses non-contiguous tensors; vllm-ascend passes them and they work on hardware: accepted.",
)
def npu_interleave_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Bring pairs of x (B, N, S, D) to halves, then rotate halves by cos and sin."""
    halves = deinterleave(x.float())
    return (halves * cos.float() + rotate_half(halves) * sin.float()).to(x.dtype)


@npu_interleave_rope.check
def _check_interleave_rope(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    require_dtype("x", x, HALF_FLOATS)
    require_same_dtype(x=x, cos=cos, sin=sin)
    require_shape("x", x, (None, None, None, 64))
    batch, _, length, _ = x.shape
    require_rank("cos", cos, 4)
    require_shape("cos", cos, (batch, 1, 1 if cos.shape[2] == 1 else length, 64))
    require_shape("sin", sin, cos.shape)


@operator(
    "npu_apply_rotary_pos_emb",
    source="op-plugin docs: torch_npu.npu_apply_rotary_pos_emb (Atlas A2)",
    limits="one dtype for all; layout BSND or TND; head size 64 or 128; rotary_mode half.",
    writes=("query", "key"),
)
def npu_apply_rotary_pos_emb(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: str = "BSND",
    rotary_mode: str = "half",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate query and key in place. cos and sin: as query, with 1 in place of the heads."""
    rotary_size = cos.shape[-1]
    rotate = rotate_half if rotary_mode == "half" else rotate_interleaved
    for tensor in (query, key):
        wide = tensor[..., :rotary_size].float()
        tensor[..., :rotary_size] = (wide * cos.float() + rotate(wide) * sin.float()).to(
            tensor.dtype
        )
    return query, key


@npu_apply_rotary_pos_emb.check
def _check_apply_rotary_pos_emb(
    query: torch.Tensor,
    key: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    layout: str,
    rotary_mode: str,
) -> None:
    require(layout in ("BSND", "TND"), f"layout is {layout!r}; Atlas A2 has 'BSND' and 'TND'")
    require(rotary_mode == "half", f"rotary_mode is {rotary_mode!r}; Atlas A2 has 'half'")
    rank = len(layout)
    require_dtype("query", query, FLOATS)
    require_same_dtype(query=query, key=key, cos=cos, sin=sin)
    for name, tensor in (("query", query), ("key", key), ("cos", cos), ("sin", sin)):
        require_rank(name, tensor, rank)
        require(
            tensor.shape[-1] in (64, 128),
            f"{name}'s last dimension is {tensor.shape[-1]}; it must be 64 or 128",
        )
    outer = query.shape[: rank - 2]
    require_shape("key", key, (*outer, None, query.shape[-1]))
    require_shape("cos", cos, (*outer, 1, None))
    require_shape("sin", sin, cos.shape)


def rotate_heads(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, head_size: int, halves: bool
) -> torch.Tensor:
    """Rotate the first 2 * cos.shape[-1] elements of each head.

    x: (tokens, heads * head_size). cos, sin: (tokens, rotary size / 2). Returns (tokens, heads,
    head_size) in x's dtype, computed in float32.
    """
    heads = x.reshape(x.shape[0], -1, head_size)
    rotary_size = 2 * cos.shape[-1]
    turned, passed = heads[..., :rotary_size].float(), heads[..., rotary_size:]
    cos, sin = cos.float().unsqueeze(1), sin.float().unsqueeze(1)
    if halves:
        first, second = turned.chunk(2, -1)
    else:
        first, second = turned[..., ::2], turned[..., 1::2]
    new_first, new_second = first * cos - second * sin, second * cos + first * sin
    if halves:
        result = torch.cat((new_first, new_second), -1)
    else:
        result = torch.stack((new_first, new_second), -1).flatten(-2)
    return torch.cat((result.to(x.dtype), passed), -1)


@operator(
    "_npu_rotary_embedding",
    source="op-plugin tests: test_atb_rope",
    limits="query and key (tokens, heads * head_size), contiguous; cos_sin_cache (positions, "
    "head_size): a partial rotation is not supported.",
    writes=("query", "key"),
)
def _npu_rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox_style: bool,
) -> None:
    """Rotate query and key in place. The cache's rows are cos and sin, a half each."""
    cos, sin = cos_sin_cache.index_select(0, positions.flatten().long()).chunk(2, -1)
    for tensor in (query, key):
        tensor.copy_(rotate_heads(tensor, cos, sin, head_size, is_neox_style).view_as(tensor))


@_npu_rotary_embedding.check
def _check_rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    head_size: int,
    cos_sin_cache: torch.Tensor,
) -> None:
    require_dtype("positions", positions, INTEGERS)
    require_rank("cos_sin_cache", cos_sin_cache, 2)
    require_shape("cos_sin_cache", cos_sin_cache, (None, head_size))
    for name, tensor in (("query", query), ("key", key)):
        require_dtype(name, tensor, FLOATS)
        require_rank(name, tensor, 2)
        require_contiguous(name, tensor)
        require_shape(name, tensor, (positions.numel(), None))
        require(
            tensor.shape[1] % head_size == 0,
            f"{name} has {tensor.shape[1]} columns; they must be a multiple of head_size "
            f"{head_size}",
        )
    require_positions(positions, cos_sin_cache)


def require_positions(positions: torch.Tensor, cos_sin_cache: torch.Tensor) -> None:
    """Refuse positions that are not rows of the cache."""
    if positions.numel():
        rows = cos_sin_cache.shape[0]
        require_range("the least of positions", int(positions.min()), 0, rows - 1)
        require_range("the largest of positions", int(positions.max()), 0, rows - 1)


@operator(
    "npu_mrope",
    source="op-plugin docs: torch_npu.npu_mrope",
    limits="head and rotary size multiples of 32 (float32: 16); one dtype for query, key and "
    "cache.",
    missing="cache_mode interleave.",
)
def npu_mrope(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    head_size: int,
    *,
    mrope_section: list[int] | None = None,
    rotary_mode: str = "half",
    cache_mode: str = "default",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotary embedding whose angles come from several rows of positions, a section each.

    positions: (tokens,) or (sections, tokens). Returns new query and key of the inputs' shapes.
    """
    if cache_mode != "default":
        raise NotImplementedError(
            f"emulated NPU has no torch_npu.npu_mrope with cache_mode {cache_mode!r}; it has "
            f"'default'"
        )
    cos, sin = cos_sin_cache[positions.long()].chunk(2, -1)
    if positions.dim() == 2:
        sections = list(mrope_section or ())
        cos, sin = (
            torch.cat([part[row] for row, part in enumerate(table.split(sections, -1))], -1)
            for table in (cos, sin)
        )
    rotated_query, rotated_key = (
        rotate_heads(tensor, cos, sin, head_size, rotary_mode == "half").view_as(tensor)
        for tensor in (query, key)
    )
    return rotated_query, rotated_key


@npu_mrope.check
def _check_mrope(given: Arguments) -> None:
    require(
        given.rotary_mode in ("half", "interleaved"),
        f"rotary_mode is {given.rotary_mode!r}; it must be 'half' or 'interleaved'",
    )
    require_dtype("positions", given.positions, INTEGERS)
    require_rank("positions", given.positions, (1, 2))
    require_dtype("query", given.query, FLOATS)
    require_same_dtype(query=given.query, key=given.key, cos_sin_cache=given.cos_sin_cache)
    rotary_size, unit = (
        given.cos_sin_cache.shape[-1],
        16 if given.query.dtype == torch.float32 else 32,
    )
    for name, size in (("head_size", given.head_size), ("rotary size", rotary_size)):
        require(size % unit == 0, f"{name} is {size}; it must be a multiple of {unit}")
    require_range("rotary size", rotary_size, 0, given.head_size)
    if given.positions.dim() == 2:
        sections = list(given.mrope_section or ())
        rows = given.positions.shape[0]
        require(
            len(sections) == rows and sum(sections) == rotary_size // 2,
            f"mrope_section is {sections}; it must have {rows} entries (the rows of positions) "
            f"that add up to {rotary_size // 2} (half the rotary size)",
        )
    require_positions(given.positions, given.cos_sin_cache)
