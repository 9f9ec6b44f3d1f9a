# SPDX-License-Identifier: Apache-2.0
"""Caches that MkvModelRunner allocates, views and binds itself, beside vllm-ascend's.

The KV groups and their bytes are those of vLLM's functions with ours in them; the stock side is
vllm-ascend's own code on the same layers.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.model_executor.models.extract_hidden_states import CacheOnlyAttentionBackend
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from mkv_ascend.layout.component import LayoutError
from tests.support import hosts
from tests.support.caches import stock_caches
from tests.support.caches.kv_configs import configs, model
from tests.support.caches.layer_cases import (
    BF16,
    CASES,
    GQA,
    MLA,
    WINDOW,
    dense,
    described,
    latent,
    sparse,
    stock,
)
from tests.support.caches.planned_runner import PlannedRunner, aliases
from tests.support.caches.stock_caches import NUM_BLOCKS

page_shapes_of = hosts.module("kv_cache.page_shapes").page_shapes_of

pytestmark = [pytest.mark.usefixtures("installed"), pytest.mark.core]


def kv_cache_config(groups: Any, counted: int) -> KVCacheConfig:
    """The groups as the engine core gives them, and their bytes."""
    specs = []
    for group in groups:
        of_group = {name: spec for name, spec, _ in group}
        first = group[0][1]
        whole = first
        if any(spec != first for spec in of_group.values()):
            whole = UniformTypeKVCacheSpecs(first.block_size, of_group)
        specs.append(KVCacheGroupSpec([*of_group], whole))
    return KVCacheConfig(NUM_BLOCKS, [hosts.kv_cache_tensor(counted, [])], specs)


beside_stock = hosts.only_on("vllm_ascend_0_23", hosts.OWN_BUFFERS)


@beside_stock
@pytest.mark.parametrize("case", CASES)
def test_the_runners_caches_are_those_of_vllm_ascend(case: str) -> None:
    groups, shared = CASES[case]
    expected, stock_bytes = stock(groups, shared)
    backends = {name: backend for group in groups for name, _, backend in group}
    runner = PlannedRunner(kv_cache_config(groups, stock_bytes), backends)
    caches = runner.caches()
    assert {name: described(cache) for name, cache in caches.items()} == {
        name: described(cache) for name, cache in expected.items()
    }
    plan = runner.cache_plan
    assert plan is not None
    # Buffers start at multiples of 512 bytes.
    assert stock_bytes <= plan.total_bytes <= stock_bytes + 512 * 8
    assert aliases(caches, NUM_BLOCKS) == []
    assert {cache.device for cache in _tensors(caches)} == {torch.device("npu:0")}


@pytest.mark.parametrize("lacking", [0, 1])
def test_a_plan_that_takes_more_than_the_engine_core_counted_is_refused(lacking: int) -> None:
    """Both must group alike: caches of other groups would run out of memory, or share bytes."""
    groups, _ = CASES[next(iter(CASES))]
    backends = {name: backend for group in groups for name, _, backend in group}
    first = PlannedRunner(kv_cache_config(groups, 1 << 40), backends)
    first.caches()
    plan = first.cache_plan
    assert plan is not None
    counted = (plan.num_blocks - lacking) * plan.bytes_per_block
    runner = PlannedRunner(kv_cache_config(groups, counted), backends)
    if not lacking:
        assert runner.caches()
        return
    with pytest.raises(LayoutError, match=f"core counted {counted};"):
        runner.caches()


def _tensors(caches: dict[str, Any]) -> list[torch.Tensor]:
    return [
        tensor
        for cache in caches.values()
        for tensor in ([cache] if isinstance(cache, torch.Tensor) else cache)
    ]


BACKENDS = {
    FullAttentionSpec: GQA,
    SlidingWindowSpec: GQA,
    AscendMLAAttentionSpec: MLA,
    HiddenStateCacheSpec: CacheOnlyAttentionBackend,
    MambaSpec: None,
}
if hosts.INDEXER_IS_A_LAYER:
    from vllm_ascend.core.kv_cache_interface import AscendSFAIndexerCacheSpec

    BACKENDS[AscendSFAIndexerCacheSpec] = MLA
SHORT = MambaSpec(block_size=128, shapes=((2, 2048),), dtypes=(BF16,))
KDA = MambaSpec(
    block_size=128,
    shapes=((3, 512), (3, 512), (3, 512), (16, 128, 32)),
    dtypes=(BF16, BF16, BF16, torch.float32),
)
MAMBA_2 = MambaSpec(block_size=128, shapes=((3, 768), (8, 64, 64)), dtypes=(BF16, torch.float32))


def delta() -> MambaSpec:
    """States of a gated delta net: the larger is as large as the target's keys."""
    return MambaSpec(block_size=512, shapes=((3, 1024), (4, 128, 128)), dtypes=(BF16, BF16))


def indexed() -> list[Any]:
    return sparse((512, 64, 128))


HIDDEN = HiddenStateCacheSpec(block_size=128, num_kv_heads=3, head_size=64, dtype=BF16)
PAIRS: dict[str, tuple[list[Any], list[Any]]] = {
    "gated delta nets": ([delta(), delta(), delta(), dense(256, 2)] * 2, []),
    "gated delta nets, half pages": ([delta(), delta(), dense(256, 2)], [dense(128, 2)]),
    "gated delta nets, other pages": (
        [delta(), delta(), dense(256, 2)],
        [dense(128, 3), dense(128, 3)],
    ),
    "gated delta nets, windows": (
        [delta(), delta(), dense(256, 2)],
        [WINDOW, dense(128, 1)],
    ),
    "Mamba 2": ([MAMBA_2, dense(), MAMBA_2], []),
    "Mamba 2, dense": ([MAMBA_2, dense(), MAMBA_2], [dense(64, 1)]),
    "delta attention beside latents": ([KDA, KDA, latent()], []),
    "delta attention beside latents, dense": ([KDA, KDA, latent()], [dense(64, 2)]),
    "short convolutions": ([SHORT, dense(64, 8), SHORT], []),
    "short convolutions, dense": ([SHORT, dense(64, 8), SHORT], [dense(64, 4)]),
    "two kinds of states": ([delta(), MAMBA_2, dense(256, 2)], [dense(128, 8)]),
    "indexer, dense": ([*indexed(), *sparse((512, 64, 0))], [dense(64, 8)]),
    "indexer, window": ([*indexed(), *indexed()], [WINDOW, dense()]),
    "indexer, latents": ([*indexed(), *indexed()], [latent()]),
    "quantised indexer, dense": (
        sparse((656, 0, 128), packed=True, quantised_indexer=True),
        [dense()],
    ),
    "dense, indexer": ([dense()], indexed()),
    "hidden states of latents": (
        [latent(), latent()],
        [HiddenStateCacheSpec(block_size=128, num_kv_heads=3, head_size=576, dtype=BF16)],
    ),
    "hidden states of a dense target": ([dense(), dense()], [HIDDEN]),
    "hidden states of states": (
        [delta(), dense(256, 2)],
        [HIDDEN],
    ),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_blocks_from_specs_to_tensors_are_nobody_elses(pair: str) -> None:
    """The engine core's configuration, and the runner's caches made of it, of any two models."""
    target, draft = ([copy.copy(spec) for spec in specs] for specs in PAIRS[pair])
    specs = model(target, draft)
    (config,) = configs(specs, blocks=24, max_model_len=512)
    backends = {name: BACKENDS[type(spec)] for name, spec in specs.items()}
    runner = PlannedRunner(config, backends, [name for name in specs if name.startswith("head.")])
    caches = runner.caches()
    assert [*sorted(caches)] == sorted(specs)
    assert aliases(caches, config.num_blocks, config.page_shapes) == []
    counted = sum(tensor.size for tensor in config.kv_cache_tensors)
    assert runner.cache_plan is not None
    assert counted <= runner.cache_plan.total_bytes <= counted + 512 * 2 * len(specs)
    shapes = page_shapes_of(config)
    held = sum(
        shape.blocks * spec_bytes(specs[name])
        for group, shape in zip(config.kv_cache_groups, shapes, strict=True)
        for name in group.layer_names
    )
    assert sum(part.nbytes for part in _tensors(caches)) == held * config.num_blocks


def test_hidden_states_are_not_split_into_blocks_of_a_kernel() -> None:
    specs = model([dense(block=256)], [replace(HIDDEN, block_size=256)])
    (config,) = configs(specs, blocks=8)
    backends = {name: BACKENDS[type(spec)] for name, spec in specs.items()}
    caches = PlannedRunner(config, backends, ["head.layers.0"]).caches()
    assert [part.shape[:2] for part in _tensors(caches)] == [(16, 128), (16, 128), (8, 256)]


@beside_stock
def test_quantised_latents_are_those_of_vllm_ascend(monkeypatch: pytest.MonkeyPatch) -> None:
    """fa_quant: the latent of some layers in int8, their rope in the model's dtype."""
    quantised, plain = latent(head_size=512 + 2 * 64, dtype=torch.int8), latent()
    names = ["model.0.self_attn.attn", "model.1.self_attn.attn"]
    groups = [[(names[0], quantised, MLA), (names[1], plain, MLA)]]
    transfer = SimpleNamespace(
        is_kv_consumer=True,
        kv_connector="MooncakeConnectorV1",
        kv_connector_module_path=None,
        kv_connector_extra_config={},
    )
    monkeypatch.setattr(stock_caches, "StandInRunner", quantising(transfer))
    expected, stock_bytes = stock(groups, shared=False)

    runner = PlannedRunner(
        kv_cache_config(groups, stock_bytes), dict.fromkeys(names, MLA), kv_transfer_config=transfer
    )
    runner.layers[names[0]].impl = SimpleNamespace(
        fa_quant_layer=True, dtype=torch.int8, vllm_config=runner.vllm_config
    )
    caches = runner.caches()
    assert {name: described(cache) for name, cache in caches.items()} == {
        name: described(cache) for name, cache in expected.items()
    }
    assert [part.dtype for part in caches[names[0]]] == [torch.int8, BF16]


def quantising(transfer: Any) -> type[stock_caches.StandInRunner]:
    """vllm-ascend's runner with a quantisation of the first layer's latent."""
    from vllm_ascend.quantization.modelslim_config import AscendModelSlimConfig

    quantisation = AscendModelSlimConfig({})
    quantisation.enable_fa_quant, quantisation.kvcache_quant_layers = True, [0]

    class Runner(stock_caches.StandInRunner):
        _align_memory = NPUModelRunner._align_memory

        def __init__(self, groups: Any) -> None:
            super().__init__(groups)
            self.vllm_config = SimpleNamespace(
                kv_transfer_config=transfer, quant_config=quantisation
            )
            self.model_config.dtype, self.model_config.use_mla = BF16, True

    return Runner


def spec_bytes(spec: Any) -> int:
    """Bytes of one block without what pads its page."""
    bare = copy.copy(spec)
    object.__setattr__(bare, "page_size_padded", None)
    return int(bare.page_size_bytes)
