# SPDX-License-Identifier: Apache-2.0
"""Layers of every layout that vllm-ascend serves, with its own specs; its caches, and ours."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

# Before anything else of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # noqa: F401  # isort: skip
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm_ascend.attention.attention_v1 import AscendAttentionBackend
from vllm_ascend.attention.dsa_v1 import AscendDSABackend
from vllm_ascend.attention.mla_v1 import AscendMLABackend
from vllm_ascend.attention.sfa_v1 import AscendSFABackend
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec, AscendSlidingWindowMLASpec

from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.recipes import LayerFacts, layout_of
from tests.support import hosts
from tests.support.caches.stock_caches import Layers, stock_caches

BF16 = torch.bfloat16


def stock(groups: Sequence[Layers], shared: bool) -> tuple[dict[str, Any], int]:
    """vllm-ascend's caches and the bytes of its budget; ``shared``: layers by position, or none."""
    names = [[name for name, _, _ in group] for group in groups]
    if shared:
        return stock_caches(groups, list(zip(*names, strict=True)))
    return stock_caches(groups, [[name] for group in names for name in group])


def described(cache: Any) -> Any:
    """Container, dtypes, shapes and strides."""
    if isinstance(cache, torch.Tensor):
        return (cache.dtype, tuple(cache.shape), cache.stride())
    return type(cache), [described(tensor) for tensor in cache]


def dense(dim: int = 128, heads: int = 4, block: int = 128, **fields: Any) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=block, num_kv_heads=heads, head_size=dim, dtype=BF16, **fields
    )


def latent(**fields: Any) -> AscendMLAAttentionSpec:
    values = {"block_size": 128, "num_kv_heads": 1, "head_size": 576, "dtype": BF16, **fields}
    return AscendMLAAttentionSpec(**values)


def sparse(
    dims: tuple[int, int, int],
    packed: bool = False,
    quantised_indexer: bool = False,
    replicas: int = 1,
) -> list[KVCacheSpec]:
    """The specs of a layer with sparse attention: one, or two where the indexer has its own.

    Args:
        dims: features of latent, rope and indexer; (packed, 0, indexer) if packed.
        packed: latent and rope are one row of bytes (``enable_sparse_sfa_c8``).
        quantised_indexer: its keys are int8, with a scale (``enable_sparse_li_c8``).
        replicas: of the indexer's keys.
    """
    if not hosts.INDEXER_IS_A_LAYER:
        return [
            latent(
                head_size=sum(dims),
                sparse_head_dim=dims,
                cache_sparse_sfa_c8=packed,
                cache_sparse_li_c8=quantised_indexer,
                sfa_dcp_replicated_indexer_size=replicas,
            )
        ]
    from vllm_ascend.core.kv_cache_interface import AscendSFAIndexerCacheSpec

    dtype = torch.int8 if packed else BF16
    main = latent(head_size=dims[0] + dims[1], cache_sparse_sfa_c8=packed, dtype=dtype)
    if not dims[2]:
        return [main]
    indexer = AscendSFAIndexerCacheSpec(
        block_size=128,
        num_kv_heads=1,
        head_size=dims[2],
        dtype=torch.int8 if quantised_indexer else BF16,
        scale_dim=int(quantised_indexer),
        scale_dtype=torch.float16,
        cache_sparse_li_c8=quantised_indexer,
        sfa_dcp_replicated_indexer_size=replicas,
    )
    return [main, indexer]


def mamba(**fields: Any) -> MambaSpec:
    return MambaSpec(
        block_size=1024,
        shapes=((3, 8192), (32, 128, 128)),
        dtypes=(BF16, BF16),
        page_size_padded=2 * (1 << 20) + 3 * 8192 * 2,
        **fields,
    )


WINDOW = SlidingWindowSpec(
    block_size=128, num_kv_heads=4, head_size=128, dtype=BF16, sliding_window=512
)

CHUNKED = ChunkedLocalAttentionSpec(
    block_size=128, num_kv_heads=4, head_size=128, dtype=BF16, attention_chunk_size=512
)

CROSS = CrossAttentionSpec(block_size=128, num_kv_heads=4, head_size=128, dtype=BF16)

COMPRESSED = {
    "model_version": "deepseek_v4",
    "cache_dtype_str": "auto",
}

V4_WINDOW = AscendSlidingWindowMLASpec(
    block_size=128, num_kv_heads=1, head_size=512, dtype=BF16, sliding_window=128, **COMPRESSED
)

V4_STATE = AscendSlidingWindowMLASpec(
    block_size=8,
    num_kv_heads=1,
    head_size=512,
    dtype=torch.float32,
    sliding_window=8,
    page_size_padded=16640,
)

GQA, MLA, SFA, DSA = (
    AscendAttentionBackend,
    AscendMLABackend,
    AscendSFABackend,
    AscendDSABackend,
)


def attn(*specs: Any, backend: Any, prefix: str = "model") -> Layers:
    return [(f"{prefix}.{i}.self_attn.attn", spec, backend) for i, spec in enumerate(specs)]


HYBRID_PAGE = {"block": 1024, "page_size_padded": 2 * (1 << 20) + 3 * 8192 * 2}

CASES: dict[str, tuple[Sequence[Layers], bool]] = {
    "L1 keys and values": ([attn(dense(), dense(64, 8), backend=GQA)], False),
    "L1 window": ([attn(dense(), backend=GQA), attn(WINDOW, backend=GQA, prefix="w")], True),
    "L1 blocks of 256": (
        [attn(dense(block=256), backend=GQA), attn(dense(block=256), backend=GQA, prefix="w")],
        True,
    ),
    "L1 chunked": ([attn(CHUNKED, backend=GQA)], False),
    "L1 cross": ([attn(CROSS, backend=GQA)], False),
    "L2 latent": ([attn(latent(), latent(), backend=MLA)], False),
    "L2 with a dense draft": (
        [[*attn(latent(), backend=MLA), *attn(dense(), backend=GQA, prefix="draft")]],
        False,
    ),
    "L4": ([attn(*sparse((512, 64, 128)), backend=SFA)], False),
    "L4 replicas": (
        [attn(*sparse((512, 64, 128), replicas=2), backend=SFA)],
        False,
    ),
    "L5": ([attn(*sparse((512, 64, 0)), backend=SFA)], False),
    "L6": ([attn(*sparse((512, 64, 128), quantised_indexer=True), backend=SFA)], False),
    "L7": ([attn(*sparse((656, 0, 128), packed=True), backend=SFA)], False),
    "L8": (
        [
            attn(
                *sparse((656, 0, 128), packed=True, quantised_indexer=True),
                backend=SFA,
            )
        ],
        False,
    ),
    "L9": ([attn(*sparse((656, 0, 0), packed=True), backend=SFA)], False),
    "L10, L11 states and attention": (
        [
            [("model.0.linear_attn", mamba(), None)],
            attn(dense(256, 2, **HYBRID_PAGE), backend=GQA),
        ],
        True,
    ),
    "L12 states and latents": (
        [
            [
                (
                    "model.0.linear_attn",
                    MambaSpec(
                        block_size=128,
                        shapes=((16, 128, 32),),
                        dtypes=(BF16,),
                        page_size_padded=128 * 576 * 2,
                    ),
                    None,
                )
            ],
            attn(latent(), backend=MLA),
        ],
        True,
    ),
}

OF_DEEPSEEK_V4: dict[str, tuple[Sequence[Layers], bool]] = {
    "L14 compressed": ([attn(latent(head_size=512, **COMPRESSED), backend=DSA)], False),
    "L15 window of latents": (
        [
            [
                *attn(latent(head_size=512, **COMPRESSED), backend=DSA),
                *attn(V4_WINDOW, backend=DSA, prefix="w"),
            ]
        ],
        False,
    ),
    "L15, L16 state and indexer": (
        [
            attn(
                latent(
                    head_size=128,
                    dtype=torch.int8,
                    scale_dim=1,
                    scale_dtype=torch.float16,
                    **COMPRESSED,
                ),
                backend=DSA,
            ),
            attn(V4_STATE, backend=DSA, prefix="w"),
        ],
        True,
    ),
}

if hosts.PLANS_DEEPSEEK_V4:
    CASES.update(OF_DEEPSEEK_V4)


def planned(groups: Sequence[Layers]) -> list[list[Any]]:
    """Layouts as a runner would ask for them."""
    layouts: list[list[Any]] = []
    for group in groups:
        layouts.append([])
        for name, spec, backend in group:
            kernel_block = 128 if backend in (GQA, MLA, SFA) and len(groups) > 1 else None
            facts = LayerFacts(
                name, Role.TARGET, kernel_block=kernel_block, latent_dim=512, rope_dim=64
            )
            layouts[-1].append(layout_of(spec, facts))
    return layouts
