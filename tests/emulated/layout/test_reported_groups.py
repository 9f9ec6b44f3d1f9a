# SPDX-License-Identifier: Apache-2.0
"""Public reports of models that vLLM splits into KV groups of one layer each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  First of vllm_ascend, or its imports go in a circle.
from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

from mkv_ascend.layout.requirements import Request
from tests.support import hosts
from tests.support.caches import kv_configs
from tests.support.caches.kv_configs import configs, model, stock_configs

layouts = hosts.module("kv_cache.kv_groups")

BLOCK, PAGE = 1024, 1024 * 2 * 256 * 2 * 2
"""Pages of all layers are equal, so that vLLM takes the models at all."""

pytestmark = [
    pytest.mark.usefixtures("installed"),
    hosts.only_on("vllm_ascend_0_23", "vLLM 0.30.0 finds its groups otherwise"),
    pytest.mark.host("0.23"),
    pytest.mark.core,
]


def full(heads: int = 2, size: int = 256) -> FullAttentionSpec:
    return kv_configs.full(heads, size, BLOCK)


def window() -> SlidingWindowSpec:
    return kv_configs.window(2, 256, 2048, BLOCK)


def states(*shapes: tuple[int, ...]) -> MambaSpec:
    return MambaSpec(
        block_size=1024,
        shapes=shapes,
        dtypes=(torch.bfloat16,) * len(shapes),
        page_size_padded=PAGE,
    )


def number_of_groups(specs: dict[str, Any]) -> int:
    (result,) = configs(specs, memory=2**36, max_model_len=32768)
    return len(result.kv_cache_groups)


def stock_number_of_groups(monkeypatch: pytest.MonkeyPatch, specs: dict[str, Any]) -> int:
    (result,) = stock_configs(monkeypatch, specs, 2**36, max_model_len=32768)
    return len(result.kv_cache_groups)


def delta_nets(count: int) -> list[MambaSpec]:
    return [states((3, 8192), (32, 128, 128)) for _ in range(count)]


def test_one_layer_of_a_draft_does_not_split_its_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM 51742: Qwen3.6-35B-A3B with a dflash draft of five windows and one full layer."""
    target = [*delta_nets(30), *(full() for _ in range(10))]
    draft = [*(window() for _ in range(5)), full(heads=4, size=128)]
    assert stock_number_of_groups(monkeypatch, model(target, draft)) == 46
    alone = number_of_groups(model(target, []))
    assert number_of_groups(model(target, draft)) <= alone + 2


def test_a_single_layer_of_another_kind_does_not_split_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vllm-ascend 16948: 36 delta nets beside one layer with a window of a convolution alone."""
    target = [*delta_nets(36), states((3, 4096)), *(full() for _ in range(12))]
    draft = [full()]
    assert stock_number_of_groups(monkeypatch, model(target, draft)) == 50
    assert number_of_groups(model(target, draft)) <= 6


def test_a_target_alone_keeps_vllms_blocks_where_pages_are_unlike(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """vLLM doubles blocks of layers with smaller pages, which a plan of ours would leave."""
    specs = model([full(), full(heads=1), window()], [])
    (ours,) = configs(specs, memory=2**36, max_model_len=32768)
    (stocks,) = stock_configs(monkeypatch, specs, 2**36, max_model_len=32768)
    found, expected = (
        {
            name: group.kv_cache_spec.block_size
            for group in one.kv_cache_groups
            for name in group.layer_names
        }
        for one in (ours, stocks)
    )
    assert found == expected
    assert len(set(found.values())) == 2, "all blocks are equally long"


@pytest.mark.parametrize("tokens", [128, 129, 130, 131, 257])
def test_a_window_holds_as_many_blocks_as_vllm_counts(tokens: int) -> None:
    """Also where one token more or less is a block."""
    spec, config = kv_configs.window(tokens=tokens), kv_configs.config()
    retention = layouts.retention_of(config, spec)
    request = Request(1024, config.scheduler_config.max_num_batched_tokens)
    counted = spec.max_memory_usage_bytes(config) // spec.page_size_bytes
    assert retention.blocks(spec.block_size, request) == counted


def test_states_of_a_draft_beside_kept_ones_of_the_target_have_a_group_of_their_own() -> None:
    """Prefix hits move the target's from block to block; the draft's stay where they are."""
    config, target = kv_configs.config(), states((3, 4096))
    config.cache_config.mamba_cache_mode = "align"
    kept = replace(target, mamba_cache_mode="align")
    specs = model([full(), kept], [full(), replace(target, mamba_cache_mode="none")])
    groups = layouts.merge_groups(config, specs)
    of_states = [g for g in groups if any(specs[n].__class__ is MambaSpec for n in g.layer_names)]
    assert [len(group.layer_names) for group in of_states] == [1, 1]
    # Of each group of states vllm-ascend's manager asks for a block more than it takes.
    engine_planning = hosts.module("kv_cache.engine_planning")
    assert engine_planning.blocks_asked_for(config, groups) == 2 < len(groups)
