# SPDX-License-Identifier: Apache-2.0
"""vLLM's path from specs to KV cache configurations for models with states; no engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from vllm.v1.core import kv_cache_utils
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVQuantMode, MambaSpec
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec

from benchmarks.kv_layout import planned
from benchmarks.models import KERNEL_BLOCK_SIZE, load_pair
from benchmarks.rows import REQUEST, ROWS
from benchmarks.stock_groups import spec_of
from mkv_ascend.layout.recipes import LayerFacts
from mkv_ascend.layout.requirements import Retention, RetentionKind
from tests.support import hosts
from tests.support.caches.kv_configs import (
    config,
    configs,
    layers,
    model,
    stock_configs,
)

kv_groups = hosts.module("kv_cache.kv_groups")
layer_facts = hosts.module("kv_cache.layer_facts")
page_shapes_of = hosts.module("kv_cache.page_shapes").page_shapes_of
planned_groups = hosts.module("kv_cache.planned_groups")

pytestmark = [pytest.mark.usefixtures("installed"), pytest.mark.host("0.23"), pytest.mark.core]

MIB, GIB = 2**20, 2**30
CONV = 3 * 8192 * 2
SSM = 1 << 20
STATES = {"shapes": ((3, 8192), (32, 128, 128)), "dtypes": (torch.bfloat16, torch.bfloat16)}
PAGE = 2 * SSM + CONV


def state(**fields):
    """States of a gated delta net of Qwen3-Next, padded to the attention's page."""
    return MambaSpec(**{"block_size": 1024, **STATES, "page_size_padded": PAGE, **fields})


def full(heads=2, dim=256, padded=PAGE):
    """Its attention; with other heads, a draft's beside it."""
    spec = FullAttentionSpec(
        block_size=1024, num_kv_heads=heads, head_size=dim, dtype=torch.bfloat16
    )
    return _padded(spec, padded)


def mla(padded):
    spec = AscendMLAAttentionSpec(
        block_size=128, num_kv_heads=1, head_size=576, dtype=torch.bfloat16
    )
    return _padded(spec, padded)


def _padded(spec, padded):
    if spec.page_size_bytes < padded:
        object.__setattr__(spec, "page_size_padded", padded)  # As vllm-ascend's runner does.
    return spec


def hybrid():
    """The target's specs: two periods of three layers with states and one with attention."""
    return [make() for make in (state, state, state, full) * 2]


def test_target_alone_is_configured_as_by_vllm(monkeypatch):
    specs = model(hybrid())
    (ours,) = configs(specs, memory=GIB, method="eagle3")
    (stock,) = stock_configs(monkeypatch, model(hybrid()), GIB, method="eagle3")
    assert ours.kv_cache_groups == stock.kv_cache_groups
    assert ours.num_blocks == stock.num_blocks
    if hosts.NAME == "vllm_ascend_0_23":  # in 0.30.0 the size of each is that of all together
        sizes = [[t.size for t in one.kv_cache_tensors] for one in (ours, stock)]
        assert sum(sizes[0]) == sum(sizes[1])
    assert ours.has_mamba_layers


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_a_draft_of_any_page_folds_into_the_attention_of_the_target(heads):
    specs = model(hybrid(), [full(heads, 128)])
    together = {"layout": {"shared_pages": False}, "max_model_len": 32768}
    (result,) = configs(specs, memory=GIB, method="eagle3", **together)
    groups = result.kv_cache_groups
    (attention,) = [group for group in groups if "model.layers.3" in group.layer_names]
    assert attention.layer_names == ["model.layers.3", "model.layers.7", "head.layers.0"]
    assert [group.is_eagle_group for group in groups] == [g is attention for g in groups]
    states = [group for group in groups if group is not attention]
    # What vLLM and vllm-ascend know groups of states by.
    assert all(isinstance(group.kv_cache_spec, MambaSpec) for group in states)
    assert result.has_mamba_layers
    assert result.needs_kv_cache_zeroing


def test_pages_are_not_padded_where_planes_are_shared():
    (result,) = configs(model(hybrid(), [full(1, 128)]), memory=GIB)
    specs = [
        spec
        for group in result.kv_cache_groups
        for spec in kv_groups.specs_by_layer(group).values()
    ]
    assert [spec.page_size_padded for spec in specs] == [None] * len(specs)


def test_latents_beside_states_are_grouped_though_vllm_cannot(monkeypatch):
    """AscendMLAAttentionSpec does not count what its page is padded to (Kimi-Linear)."""
    states = MambaSpec(
        block_size=128,
        shapes=((3, 512), (16, 128, 32)),
        dtypes=(torch.bfloat16, torch.bfloat16),
        page_size_padded=128 * 576 * 2 + 3072,
    )
    specs = model([states, mla(128 * 576 * 2 + 3072)])
    if hosts.NAME == "vllm_ascend_0_23":  # 0.30.0rc2 counts it
        with pytest.raises(NotImplementedError, match="not divisible by the maximum page size"):
            stock_configs(monkeypatch, specs, GIB)
    (result,) = configs(specs, memory=GIB)
    kinds = sorted(type(group.kv_cache_spec).__name__ for group in result.kv_cache_groups)
    assert kinds == ["AscendMLAAttentionSpec", "MambaSpec"]


@pytest.mark.parametrize("page", [1, 2])
def test_states_smaller_than_a_page_are_grouped_though_vllm_cannot(page, monkeypatch):
    """vLLM makes small pages larger by larger blocks. A state stays as large as it is."""
    attention = FullAttentionSpec(
        block_size=128, num_kv_heads=2, head_size=256, dtype=torch.bfloat16
    )
    rows = attention.page_size_bytes // (2 * 1024 * page)
    states = MambaSpec(block_size=1024, shapes=((rows, 1024),), dtypes=(torch.bfloat16,))
    specs = model([states, attention])
    assert planned_groups.need_ours(config(), specs) == (page > 1)
    if page > 1 and hosts.NAME == "vllm_ascend_0_23":
        with pytest.raises(AssertionError):
            stock_configs(monkeypatch, model([states, attention]), GIB)
    (result,) = configs(specs, memory=GIB)
    assert layers(result) == [["model.layers.0"], ["model.layers.1"]]


def test_states_of_two_specs_have_groups_of_their_own():
    other = state(shapes=((3, 4096), (16, 128, 128)))
    (result,) = configs(model([state(), other, full()], [full(4, 128)]), memory=GIB)
    found = [group.kv_cache_spec for group in result.kv_cache_groups]
    assert sum(isinstance(spec, MambaSpec) for spec in found) == 2


@pytest.mark.parametrize(
    ("mode", "caching", "held"),
    [
        # A draft's, beside keys of the target: their manager is ours and asks for what it takes.
        ("none", True, Retention(RetentionKind.STATE, 1, extra_blocks=3)),
        ("none", False, Retention(RetentionKind.STATE, 1, extra_blocks=3, asked_blocks=1)),
        ("align", True, Retention(RetentionKind.STATE, 2, extra_blocks=3, asked_blocks=1)),
        ("all", True, Retention(RetentionKind.ALL, extra_blocks=3)),
    ],
)
def test_states_are_held_as_vllm_counts_them(mode, caching, held):
    spec, given = state(num_speculative_blocks=3), config()
    given.cache_config.mamba_cache_mode = mode
    given.cache_config.enable_prefix_caching = caching
    found = kv_groups.retention_of(given, spec)
    assert found == held
    pages = spec.max_memory_usage_bytes(given) // spec.page_size_bytes
    tokens = given.model_config.max_model_len
    assert found.blocks(spec.block_size, kv_groups.Request(tokens, 4)) == pages


def test_concurrency_is_that_of_states_and_tokens():
    (result,) = configs(model(hybrid(), [full(8, 128)]), memory=GIB)
    groups = result.kv_cache_groups
    found = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config(), result)
    # One block of 1024 tokens, and one of each group of states; requests share pages.
    pages = sum(1 / shape.blocks for shape in page_shapes_of(result))
    assert found == pytest.approx(result.num_blocks / pages)
    assert pages < len(groups)
    assert layers(result)


QWEN = [row for row in ROWS if row.target.startswith("Qwen3-Next")]


def row_specs(row):
    """The specs that vllm-ascend's runner makes of this pair, tied to their facts."""
    specs = {}
    for layer in load_pair(row.target, row.draft).layers:
        spec = spec_of(layer)
        kernel_block = KERNEL_BLOCK_SIZE if layer.rows else None
        layer_facts.tie(spec, LayerFacts(layer.name, layer.role, kernel_block))
        specs[layer.name] = spec
    return specs


@pytest.mark.parametrize("row", QWEN, ids=lambda row: row.name)
def test_groups_in_the_engine_core_cost_what_the_benchmark_says(row):
    given = config(max_model_len=REQUEST.tokens)
    groups = kv_cache_utils.get_kv_cache_groups(given, row_specs(row))
    assert planned_groups.are_planned(groups)
    found = planned(load_pair(row.target, row.draft).needs(), REQUEST)
    page = kv_cache_utils._pool_bytes_per_block(groups)
    assert (len(groups), round(page / MIB, 1)) == (found["groups"], found["page_mib"])


def test_forms_that_no_backend_serves_are_refused_by_name():
    """vllm-ascend would go on and allocate too little for them."""
    spec = replace(full(), kv_quant_mode=KVQuantMode.INT8_PER_TOKEN_HEAD)
    with pytest.raises(NotImplementedError, match=r"model\.layers\.0: KV quantisation INT8_PER"):
        configs(model([spec]))
