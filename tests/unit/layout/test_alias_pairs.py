# SPDX-License-Identifier: Apache-2.0
"""The alias probe over every pair of kinds: a target of one layout, a draft of another.

Both models have two layers of a kind, grouped and planned as an engine would. Each tensor of one
block of one layer is filled in turn, and all others are looked at: no other block of any layer may
change, nor any other tensor of the layers that hold the same block. Nothing of the proof is used.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from mkv_ascend.attention.catalog import ASCEND_BACKENDS
from mkv_ascend.layout import planning
from mkv_ascend.layout.component import LayerLayout, Storage
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.materialize import Materialized, materialize
from mkv_ascend.layout.plan import CachePlan, TensorView
from mkv_ascend.layout.planning import CachedLayer, PlanInputs
from mkv_ascend.layout.pooling import PlacedLayer
from mkv_ascend.layout.recipes import LayerFacts, layout_of
from mkv_ascend.layout.requirements import Request, Retention, RetentionKind
from tests.support.caches import specs

NUM_BLOCKS = 3
BLOCK = 32
ALL = Retention(RetentionKind.ALL)
WINDOW = Retention(RetentionKind.WINDOW, 40)
STATE = Retention(RetentionKind.STATE, 1, extra_blocks=3)
REQUEST = Request(tokens=256, tokens_per_step=4)


@dataclass(frozen=True)
class Layout:
    """A spec, what it holds, and the facts of its layer beside name and role."""

    spec: Any
    retention: Retention = ALL
    facts: dict[str, Any] = field(default_factory=dict)


def _sparse(dims: tuple[int, int, int], page: int | None = None, **fields: Any) -> Layout:
    return Layout(
        specs.AscendMLAAttentionSpec(BLOCK, 1, sum(dims), sparse_head_dim=dims, page=page, **fields)
    )


def _compressed(head_size: int, **fields: Any) -> specs.AscendMLAAttentionSpec:
    return specs.AscendMLAAttentionSpec(BLOCK, 1, head_size, model_version="deepseek_v4", **fields)


SPLIT = {"kernel_block": BLOCK // 2}
LATENT = {"latent_dim": 64, "rope_dim": 16}
INDEXER = {"dtype": "int8", "scale_dim": 1, "scale_dtype": "float16"}
DENSE = specs.FullAttentionSpec(BLOCK, 2, 32)
# Ascend pads the pages of a model with states to attention's and a convolution.
HYBRID = specs.FullAttentionSpec(2 * BLOCK, 2, 32, page_size_padded=4 * BLOCK * 64 * 2 + 3 * 64 * 2)
QUANTISED = specs.FullAttentionSpec(BLOCK, 2, 32, "int8")

LAYOUTS = {
    "L1 full": Layout(DENSE, ALL, SPLIT),
    "L1 unequal heads": Layout(specs.FullAttentionSpec(BLOCK, 2, 48, head_size_v=32), ALL, SPLIT),
    "L1 window": Layout(specs.SlidingWindowSpec(BLOCK, 1, 64), WINDOW, SPLIT),
    "L1 chunked": Layout(
        specs.ChunkedLocalAttentionSpec(BLOCK, 2, 32), Retention(RetentionKind.CHUNK, 64)
    ),
    "L1 cross": Layout(
        specs.CrossAttentionSpec(BLOCK, 2, 32), Retention(RetentionKind.ENCODER, 48)
    ),
    "L2 latent": Layout(specs.AscendMLAAttentionSpec(BLOCK, 1, 80), ALL, {**LATENT, **SPLIT}),
    "L3 quantised": Layout(QUANTISED, ALL, {"key_dtype": "int8", "value_dtype": "int8"}),
    "L4 sparse": _sparse((64, 16, 32)),
    "L4 replicas": _sparse(
        (64, 16, 32), BLOCK * (64 + 16 + 2 * 32) * 2, sfa_dcp_replicated_indexer_size=2
    ),
    "L5 without indexer": _sparse((64, 16, 0)),
    "L6 indexer with scales": _sparse(
        (64, 16, 32), BLOCK * (80 * 2 + 32 + 2), cache_sparse_li_c8=True
    ),
    "L7 packed": _sparse((88, 0, 32), BLOCK * (88 + 64), cache_sparse_sfa_c8=True),
    "L8 packed, scales": _sparse(
        (88, 0, 32), BLOCK * (88 + 32 + 2), cache_sparse_sfa_c8=True, cache_sparse_li_c8=True
    ),
    "L9 packed alone": _sparse((88, 0, 0), BLOCK * 88, cache_sparse_sfa_c8=True),
    "L10 gated delta net": Layout(
        specs.MambaSpec(2 * BLOCK, ((3, 64), (4, 32, 32)), ("bfloat16", "bfloat16")), STATE
    ),
    "L10 Mamba 2": Layout(
        specs.MambaSpec(2 * BLOCK, ((3, 96), (4, 16, 16)), ("bfloat16", "float32")), STATE
    ),
    "L10 Kimi": Layout(
        specs.MambaSpec(BLOCK, ((3, 64),) * 3 + ((4, 16, 16),), ("bfloat16",) * 3 + ("float32",)),
        STATE,
    ),
    "L10 short convolution": Layout(specs.MambaSpec(BLOCK, ((2, 64),), ("bfloat16",)), STATE),
    "L11 dense in a hybrid": Layout(HYBRID, ALL, SPLIT),
    "L12 latent in a hybrid": Layout(
        specs.AscendMLAAttentionSpec(2 * BLOCK, 1, 80, page_size_padded=16384), ALL, LATENT
    ),
    "L13 hidden states": Layout(specs.HiddenStateCacheSpec(BLOCK, 3, 64, page_size_padded=16384)),
    "L14 compressed": Layout(
        _compressed(64, compress_ratio=4), Retention(RetentionKind.ALL, tokens_per_row=4)
    ),
    "L15 window of latents": Layout(
        specs.AscendSlidingWindowMLASpec(BLOCK, 1, 64, model_version="deepseek_v4"), WINDOW
    ),
    "L15 compressor state": Layout(
        specs.AscendSlidingWindowMLASpec(8, 1, 64, "float32", page_size_padded=4352),
        Retention(RetentionKind.WINDOW, 8),
    ),
    "L16 indexer": Layout(
        _compressed(32, compress_ratio=4, **INDEXER), Retention(RetentionKind.ALL, tokens_per_row=4)
    ),
    "L17 indexer of A5": Layout(
        _compressed(32, compress_ratio=4, **INDEXER),
        Retention(RetentionKind.ALL, tokens_per_row=4),
        {"full_indexer_view": True},
    ),
}


def layers_of(target: str, draft: str) -> dict[str, tuple[LayerLayout, Retention]]:
    """Two layers of each model, by name."""
    return {
        f"{role}.{index}": (
            layout_of(
                LAYOUTS[kind].spec, LayerFacts(f"{role}.{index}", role, **LAYOUTS[kind].facts)
            ),
            LAYOUTS[kind].retention,
        )
        for role, kind in ((Role.TARGET, target), (Role.DRAFT, draft))
        for index in range(2)
    }


def plan_of(target: str, draft: str, shared_pages: bool = True) -> CachePlan:
    """As an engine's."""
    layers = tuple(CachedLayer(*layer) for layer in layers_of(target, draft).values())
    inputs = PlanInputs(layers, REQUEST, REQUEST.tokens_per_step, shared_pages=shared_pages)
    return planning.plan(inputs).plan


Part = tuple[str, TensorView, torch.Tensor]


def parts_of(plan: CachePlan, made: Materialized) -> Iterator[Part]:
    """Every tensor with its layer."""
    for name, layer in plan.bind(NUM_BLOCKS).views().items():
        cache = made.caches[name]
        tensors = [cache] if isinstance(cache, torch.Tensor) else cache
        for view, tensor in zip(layer.views, tensors, strict=True):
            yield name, view, tensor.view(torch.uint8)


def rows(part: Part, block: int) -> torch.Tensor:
    """The bytes of one block in one tensor."""
    _, view, tensor = part
    return tensor[block * view.rows_per_block : (block + 1) * view.rows_per_block]


def overlaid(part: Part, other: Part, plan: CachePlan) -> bool:
    """Whether one of two tensors of a layer is a second view of the same bytes."""
    components = {item.name: item for item in plan.layout_of[part[0]].components}
    return part[0] == other[0] and (
        components[part[1].component].overlay or components[other[1].component].overlay
    )


def page_of(plan: CachePlan, layer: str, block: int) -> int:
    """The page that has a block of the layer's group."""
    return block // plan.shapes[plan.group_of[layer]].per_stretch % NUM_BLOCKS


def aliases(plan: CachePlan, made: Materialized) -> list[str]:
    """What changes when a block of a tensor is filled, and must not."""
    parts = list(parts_of(plan, made))
    found = []
    block = 1
    for part in parts:
        rows(part, block).fill_(1)
        assert part[2].ne(0).sum() == rows(part, block).numel()
        for other in parts:
            together = plan.group_of[part[0]] == plan.group_of[other[0]]
            if other is part or overlaid(part, other, plan):
                continue
            for touched in range(len(other[2]) // other[1].rows_per_block):
                # A page is of one group at a time: other groups may keep theirs in its bytes.
                same_page = page_of(plan, other[0], touched) == page_of(plan, part[0], block)
                if same_page and not together:
                    continue
                if rows(other, touched).any():
                    found.append(
                        f"block {block} of {part[0]} ({part[1].component}) is in block {touched} "
                        f"of {other[0]} ({other[1].component})"
                    )
        rows(part, block).zero_()
    return found


def shared(plan: CachePlan) -> bool:
    """Whether layers of both models have bytes of one buffer."""
    roles: dict[int, set[Role]] = {}
    for layer in plan.bind(NUM_BLOCKS).views().values():
        for view in layer.views:
            roles.setdefault(view.buffer, set()).add(layer.layout.role)
    return any(found == set(Role) for found in roles.values())


def made_of(plan: CachePlan) -> Materialized:
    return materialize(plan.bind(NUM_BLOCKS), torch.device("cpu"))


@pytest.mark.parametrize("target", LAYOUTS)
def test_no_block_is_part_of_another_block(target: str) -> None:
    for draft in LAYOUTS:
        for plan in {plan_of(target, draft, shared_pages) for shared_pages in (True, False)}:
            assert aliases(plan, made_of(plan)) == [], f"{target} with a draft of {draft}"


def test_pairs_of_every_kind_of_storage_share_bytes() -> None:
    """Else the probe above would look at nothing."""
    kinds = ("L1 full", "L2 latent", "L4 sparse", "L10 Mamba 2", "L11 dense in a hybrid")
    partners = {
        kind: [draft for draft in LAYOUTS if shared(plan_of(kind, draft, False))]
        for kind in LAYOUTS
    }
    for kind in kinds:
        assert partners[kind], kind
    assert sum(map(len, partners.values())) > 100


def _with_first_in(layer: PlacedLayer, buffer: int) -> PlacedLayer:
    """The layer with its first component in another buffer."""
    first, *others = layer.placements
    return replace(layer, placements=(replace(first, buffer=buffer), *others))


def test_the_probe_finds_what_the_proof_would_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug 7: blocks of two sizes over the same bytes, of two groups."""
    monkeypatch.setattr("mkv_ascend.layout.plan.prove_pool", lambda *_: None)
    sound = plan_of("L9 packed alone", "L1 window", False)
    (pool,) = sound.pools
    latent = next(layer for layer in pool.layers if layer.layer == "target.1")
    moved = tuple(
        _with_first_in(layer, latent.placements[0].buffer) if layer.layer == "draft.1" else layer
        for layer in pool.layers
    )
    broken = replace(sound, pools=(replace(pool, layers=moved),))
    assert aliases(sound, made_of(sound)) == []
    found = aliases(broken, made_of(broken))
    assert "block 1 of target.1 (latent) is in block 2 of draft.1 (k)" in found


@pytest.mark.parametrize("kind", LAYOUTS)
def test_pages_have_strides_exactly_where_the_catalog_says_so(kind: str) -> None:
    """For every backend that serves the kind: a recipe does not know which it will be."""
    layout, _ = layers_of(kind, kind)["target.0"]
    serving = [entry for entry in ASCEND_BACKENDS if layout.kind in entry.kinds]
    # No backend of vllm-ascend 0.23.0 serves chunks.
    takes_strides = {entry.takes_strides for entry in serving} or {False}
    assert takes_strides == {layout.storage is Storage.PAGED}
