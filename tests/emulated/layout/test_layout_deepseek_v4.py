# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V4's caches from specs to tensors, beside vLLM's and vllm-ascend's own; no engine.

Layers, sizes and pads are those of vllm_ascend/models/deepseek_v4.py with blocks of 128 tokens, on
A2 and A3: latents of 4 or 128 tokens each with the state of their compressor, a window of latents,
and beside the former an indexer with a compressor of its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

# Before anything else of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # noqa: F401  # isort: skip
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request
from vllm_ascend.attention.dsa_v1 import AscendDSABackend
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec, AscendSlidingWindowMLASpec
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.recipes import LayerFacts
from tests.support import hosts
from tests.support.caches.kv_configs import configs, stock_configs
from tests.support.caches.layer_cases import BF16, GQA, MLA, dense, described
from tests.support.caches.layer_cases import latent as mla
from tests.support.caches.planned_runner import PlannedRunner, aliases
from tests.support.caches.stock_caches import StandInRunner

engine_core = hosts.module("kv_cache.engine_core")
layer_facts = hosts.module("kv_cache.layer_facts")
MkvModelRunner = hosts.module("runner").MkvModelRunner

pytestmark = [pytest.mark.usefixtures("installed"), pytest.mark.host("0.23")]

MIB = 2**20
SMALL, LARGE = 16640, 131072
"""Bytes of a page; vllm-ascend pads states to one of them."""
OPTIONS = {"memory": 64 * MIB, "max_model_len": 256}


def latent(ratio: int, **fields: Any) -> AscendMLAAttentionSpec:
    values = {"head_size": 512, "dtype": BF16, **fields}
    return AscendMLAAttentionSpec(
        block_size=128,
        num_kv_heads=1,
        model_version="deepseek_v4",
        compress_ratio=ratio,
        cache_dtype_str="auto",
        **values,
    )


def window() -> AscendSlidingWindowMLASpec:
    return AscendSlidingWindowMLASpec(
        block_size=128,
        num_kv_heads=1,
        head_size=512,
        dtype=BF16,
        sliding_window=128,
        cache_dtype_str="auto",
        model_version="deepseek_v4",
    )


def state(block_size: int, size: int, tokens: int, page: int) -> AscendSlidingWindowMLASpec:
    return AscendSlidingWindowMLASpec(
        block_size=block_size,
        num_kv_heads=1,
        head_size=size,
        dtype=torch.float32,
        sliding_window=tokens,
        page_size_padded=page,
    )


def of_four() -> list[Any]:
    indexer = {"scale_dim": 1, "scale_dtype": torch.float16, "dtype": torch.int8, "head_size": 128}
    return [
        latent(4),
        latent(4, **indexer),
        window(),
        state(8, 2048, 8, LARGE),
        state(8, 512, 8, SMALL),
    ]


def of_128() -> list[Any]:
    return [latent(128), window(), state(32, 1024, 128, LARGE)]


def target() -> list[Any]:
    return [*of_four(), *of_128(), *of_four()]


def layers(*draft: Any) -> dict[str, Any]:
    """Specs by name, with the facts that the worker ties: DeepSeek-V4's kernels take any block."""
    specs = {}
    for role, of_model in ((Role.TARGET, target()), (Role.DRAFT, draft)):
        for index, spec in enumerate(of_model):
            name = f"{role}.layers.{index}.self_attn.attn"
            kernel_block = min(spec.block_size, 128)
            sizes = {"latent_dim": 512, "rope_dim": 64} if spec.head_size == 576 else {}
            layer_facts.tie(spec, LayerFacts(name, role, kernel_block=kernel_block, **sizes))
            specs[name] = spec
    return specs


class DenseLayer(Attention):
    """A layer of vLLM's own, without weights."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.impl = SimpleNamespace()  # type: ignore[assignment]


class StateLayer(MambaBase):
    """A layer with recurrent states of vLLM's own."""

    get_state_shape = get_state_dtype = mamba_type = None  # type: ignore[assignment]


class BindingRunner(PlannedRunner, MkvModelRunner):  # type: ignore[misc]
    """Binds caches as a worker's ``MkvModelRunner`` does, by way of vllm-ascend's."""

    def initialize_kv_cache_tensors(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        (bind,) = import_module(
            "mkv_ascend.adapters.common.patches.attention"
        ).bind_as_layers_take.functions.values()
        caches: dict[str, Any] = bind(
            PlannedRunner.initialize_kv_cache_tensors, self, *args, **kwargs
        )
        return caches


def runner(
    config: KVCacheConfig,
    specs: dict[str, Any],
    kind: type[PlannedRunner] = PlannedRunner,
    draft_backend: type[Any] = GQA,
) -> PlannedRunner:
    drafted = [name for name in specs if name.startswith(Role.DRAFT)]
    backends = {name: draft_backend if name in drafted else AscendDSABackend for name in specs}
    return kind(config, backends, drafted, model_type="deepseek_v4")


def test_alone_it_is_grouped_by_vllm_and_has_at_least_its_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (ours,) = configs(layers(), **OPTIONS)
    (stock,) = stock_configs(monkeypatch, layers(), **OPTIONS)
    assert ours.kv_cache_groups == stock.kv_cache_groups
    assert len(ours.kv_cache_groups) > 3
    assert ours.num_blocks >= stock.num_blocks


def test_alone_its_caches_are_those_of_vllm_ascend(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {**OPTIONS, "blocks": 120}
    specs = layers()
    (ours,) = configs(specs, **options)
    planned = runner(ours, specs)
    caches = {name: cache for name, (cache,) in planned.caches().items()}
    (stock,) = stock_configs(monkeypatch, layers(), **options)
    groups = [
        [
            (name, spec, AscendDSABackend)
            for name, spec in group.kv_cache_spec.kv_cache_specs.items()
        ]
        for group in stock.kv_cache_groups
    ]
    theirs = StandInRunner(groups)
    raw = NPUModelRunner._allocate_kv_cache_tensors(theirs, stock)
    expected = NPUModelRunner._reshape_kv_cache_tensors(theirs, stock, raw)
    assert {name: described(cache) for name, cache in caches.items()} == {
        name: described(cache) for name, cache in expected.items()
    }
    assert aliases(caches, ours.num_blocks, getattr(ours, "page_shapes", {})) == []


@pytest.mark.parametrize(
    ("make", "backend", "refusal"),
    [
        (lambda: dense(64, 2), GQA, "Some layers are not assigned to any group"),
        (mla, MLA, "^$"),
    ],
    ids=["dense", "mla"],
)
def test_a_draft_of_another_kind_has_caches_beside_it(
    make: Callable[[], Any], backend: type[Any], refusal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM's grouping leaves layers of other kinds out, and takes those of MLA for its own."""
    options = {**OPTIONS, "blocks": 120}
    with pytest.raises(AssertionError, match=refusal):
        stock_configs(monkeypatch, layers(make()), **options)
    specs = layers(make())
    (config,) = configs(specs, **options)
    planned = runner(config, specs, draft_backend=backend)
    caches = {name: cache for name, (cache,) in planned.caches().items()}
    assert sorted(caches) == sorted(specs)
    assert aliases(caches, config.num_blocks, getattr(config, "page_shapes", {})) == []


@pytest.mark.parametrize("layer_class", [DenseLayer, StateLayer])
def test_the_layer_of_a_draft_has_its_cache_itself(layer_class: type[Any]) -> None:
    """vllm-ascend binds every layer's as DeepSeek-V4's layers take theirs, in a list."""
    specs = layers(dense(64, 2))
    (config,) = configs(specs, **OPTIONS, blocks=120)
    *of_target, draft = specs
    bound = {}
    for kind in (PlannedRunner, BindingRunner):
        planned = runner(config, specs, kind)
        planned.layers[draft] = layer_class()
        bound[kind] = planned.caches()
    (in_a_list,) = bound[PlannedRunner][draft]
    assert not isinstance(bound[BindingRunner][draft], list)
    assert described(bound[BindingRunner][draft]) == described(in_a_list)
    assert all(isinstance(bound[BindingRunner][name], list) for name in of_target)


def hit_of(manager: Any, name: str, tokens: int, step: int) -> int:
    """Tokens that are found for a prompt, of which then all are computed, and its end."""
    hasher = kv_cache_utils.get_request_block_hasher(8, sha256)
    sampling = SamplingParams(max_tokens=8)
    asked = Request(name, [*range(tokens)], sampling, None, block_hasher=hasher)
    blocks, hit, *_ = manager.get_computed_blocks(asked)
    for begin in range(hit, tokens, step):
        found = (hit, blocks) if begin == hit else (0, None)
        assert manager.allocate_slots(asked, min(step, tokens - begin), *found) is not None
        asked.num_computed_tokens = min(begin + step, tokens)
    manager.free(asked)
    return hit


@pytest.mark.parametrize("interval", [None, 32768])
@pytest.mark.parametrize("draft", [window(), dense(64, 2)], ids=["mtp", "dense"])
def test_a_long_prompt_is_found_again(
    draft: Any, interval: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where windows are kept once in an interval, beside the last that can be found."""
    if interval is not None:
        monkeypatch.setenv("VLLM_PREFIX_CACHE_RETENTION_INTERVAL", str(interval))
    longest, is_head = 100_000, draft == window()
    method = "mtp" if is_head else "draft_model"
    specs = layers(draft)
    (config,) = configs(specs, memory=4096 * MIB, max_model_len=longest, method=method)
    config = kv_cache_utils.generate_scheduler_kv_cache_config([config])
    kv_cache_utils.init_none_hash(sha256)
    manager = KVCacheManager.__new__(KVCacheManager)
    engine_core._give_pages(
        inspect.unwrap(KVCacheManager.__init__),
        *(manager, config),
        max_model_len=longest,
        max_num_batched_tokens=8192,
        scheduler_block_size=128,
        hash_block_size=8,
        enable_caching=True,
        use_eagle=is_head,
    )
    # A block of keys that stand for 128 tokens each is 16,384 tokens.
    found = [hit_of(manager, name, 90_000, 8192) for name in ("first", "again")]
    assert found == [0, 5 * 16384]
