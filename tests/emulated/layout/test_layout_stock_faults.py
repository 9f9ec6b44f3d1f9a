# SPDX-License-Identifier: Apache-2.0
"""Faults of vllm-ascend 0.23.0 in specs, groups and bytes, run in its own code; a plan beside each.

Unlike those of ``test_layout_stock_bugs.py`` most of them raise nothing where they happen.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

# Before anything else of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # noqa: F401  # isort: skip
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.core import kv_cache_utils
from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    HiddenStateCacheSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
)
from vllm.v1.worker.utils import select_common_block_size
from vllm_ascend._310p.attention.attention_v1 import AscendAttentionBackend310
from vllm_ascend._310p.model_runner_310p import NPUModelRunner310
from vllm_ascend.attention.attention_v1 import AscendAttentionBackend
from vllm_ascend.worker import model_runner_v1

from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.materialize import materialize
from mkv_ascend.layout.page_planning import plan_pages
from mkv_ascend.layout.plan import make_plan
from mkv_ascend.layout.planning import fitted_groups, requirements_of
from mkv_ascend.layout.recipes import LayerFacts, layout_of
from mkv_ascend.layout.requirements import Request, Retention, RetentionKind
from tests.support import hosts
from tests.support.caches import kv_configs
from tests.support.caches.kv_configs import configs, model
from tests.support.caches.layer_cases import BF16, GQA, HYBRID_PAGE, attn, dense, latent, planned
from tests.support.caches.planned_runner import PlannedRunner, aliases
from tests.support.caches.stock_caches import NUM_BLOCKS, StandInRunner, stock_caches

pytestmark = pytest.mark.host("0.23")

engine_core = hosts.module("kv_cache.engine_core")

NPU = torch.device("npu:0")
MIB = 1 << 20
FIXED = "bug {}: fixed in the installed {}; take this case out"


def stock_groups(specs: dict[str, Any]) -> list[KVCacheGroupSpec]:
    """By vLLM's own functions, whether or not ours are installed in this process."""
    register_all_kvcache_specs(kv_configs.config())
    with pytest.MonkeyPatch.context() as patch:
        for name in kv_configs.FUNCTIONS:
            own = getattr(kv_cache_utils, name)
            patch.setattr(kv_cache_utils, name, getattr(own, "__wrapped__", own))
        config = kv_configs.config()
        groups: list[KVCacheGroupSpec] = kv_cache_utils.get_kv_cache_groups(config, dict(specs))
    return groups


def refused_by_stock(specs: dict[str, Any]) -> str:
    """What vLLM says to these specs; empty where it groups them."""
    try:
        stock_groups(specs)
    except (NotImplementedError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def planned_shapes(specs: dict[str, Any], retentions: dict[str, Retention]) -> Any:
    """Shapes of all caches of a plan, with a block to a page."""
    facts = {name: LayerFacts(name, Role.TARGET, latent_dim=512, rope_dim=64) for name in specs}
    layouts = {name: layout_of(spec, facts[name]) for name, spec in specs.items()}
    needs = [requirements_of(layout, retentions[name]) for name, layout in layouts.items()]
    plan = make_plan(
        fitted_groups(layouts, plan_pages(needs, Request(1024), one_block=True).groups)
    )
    made = materialize(plan.bind(NUM_BLOCKS), NPU)
    return {name: [tuple(part.shape) for part in cache] for name, cache in made.caches.items()}


QWEN3_NEXT = [
    [
        (
            "model.0.linear_attn",
            MambaSpec(
                block_size=1024,
                shapes=((3, 8192), (32, 128, 128)),
                dtypes=(BF16, BF16),
                page_size_padded=HYBRID_PAGE["page_size_padded"],
            ),
            None,
        )
    ],
    attn(dense(256, 2, **HYBRID_PAGE), backend=GQA),
]


def test_bug_7_a_draft_with_smaller_keys_overlaps_other_blocks() -> None:
    """Qwen3-Next with a draft of 2 heads of 128; with 4 its keys are as large as the target's."""
    for heads, is_sound in ((4, True), (2, False)):
        draft = attn(dense(128, heads, **HYBRID_PAGE), backend=GQA, prefix="draft")
        groups = [*QWEN3_NEXT, draft]
        stock, _ = stock_caches(groups, [[name for group in groups for name, _, _ in group]])
        found = aliases(stock, NUM_BLOCKS)
        if found and is_sound:
            pytest.fail(f"the probe finds {found[:3]} where nothing overlaps")
        if not found and not is_sound:
            pytest.fail(FIXED.format(7, "vllm-ascend"))
        own = materialize(make_plan(planned(groups)).bind(NUM_BLOCKS), NPU).caches
        assert aliases(own, NUM_BLOCKS) == []


KIMI_STATES = MambaSpec(
    block_size=128,
    shapes=((3, 4096), (3, 4096), (3, 4096), (32, 128, 128)),
    dtypes=(BF16, BF16, BF16, torch.float32),
)


def test_bug_9_latents_beside_longer_states_are_refused() -> None:
    """As the runner pads them: vllm-ascend's spec of a latent has a padded page it never counts."""
    padded = latent(page_size_padded=KIMI_STATES.page_size_bytes)
    specs = {"model.0.linear_attn": KIMI_STATES, "model.1.self_attn.attn": padded}
    if not (said := refused_by_stock(specs)):
        pytest.fail(FIXED.format(9, "vllm-ascend"))
    assert said.startswith("NotImplementedError")
    retentions = dict(
        zip(specs, (Retention(RetentionKind.STATE, 1), Retention(RetentionKind.ALL)), strict=True)
    )
    shapes = planned_shapes(specs, retentions)
    assert shapes["model.1.self_attn.attn"] == [
        (NUM_BLOCKS, 128, 1, 512),
        (NUM_BLOCKS, 128, 1, 64),
    ]
    assert shapes["model.0.linear_attn"] == [(NUM_BLOCKS, *shape) for shape in KIMI_STATES.shapes]


class States(MambaBase):
    """A layer with this spec."""

    mamba_type = None
    get_state_shape = get_state_dtype = None

    def __init__(self, spec: MambaSpec) -> None:
        self.spec = spec

    def get_kv_cache_spec(self, vllm_config: Any) -> MambaSpec:
        return self.spec


class Dense(Attention):
    """A layer with this spec; nothing of a real one is built."""

    kv_sharing_target_layer_name = None

    def __init__(self, spec: FullAttentionSpec) -> None:
        object.__setattr__(self, "spec", spec)

    def get_kv_cache_spec(self, vllm_config: Any) -> FullAttentionSpec:
        return self.spec


WIDE = MambaSpec(block_size=128, shapes=((3, 8192), (32, 64, 64)), dtypes=(BF16, torch.float32))
NARROW = MambaSpec(block_size=128, shapes=((2, 1024),), dtypes=(BF16,))


def specs_of_runner(monkeypatch: pytest.MonkeyPatch, *states: MambaSpec) -> dict[str, Any]:
    """What vllm-ascend's runner makes of layers with these states and one of attention."""
    layers: dict[str, Any] = {f"model.{i}.linear_attn": States(s) for i, s in enumerate(states)}
    layers["model.9.self_attn.attn"] = Dense(dense())
    monkeypatch.setattr(model_runner_v1, "get_layers_from_vllm_config", lambda *_: layers)
    runner = SimpleNamespace(vllm_config=None, shared_kv_cache_layers={}, use_compress=False)
    specs: dict[str, Any] = model_runner_v1.NPUModelRunner.get_kv_cache_spec(runner)
    return specs


def test_bug_11_the_last_states_decide_the_page_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention is padded to the last layer's states, and stays below the largest ones."""
    name = "model.9.self_attn.attn"
    right = specs_of_runner(monkeypatch, NARROW, WIDE)[name].page_size_bytes
    specs = specs_of_runner(monkeypatch, WIDE, NARROW)
    if specs[name].page_size_bytes == right:
        pytest.fail(FIXED.format(11, "vllm-ascend"))
    assert right == WIDE.page_size_bytes > specs[name].page_size_bytes
    assert refused_by_stock(specs).startswith("NotImplementedError")
    state, all_tokens = Retention(RetentionKind.STATE, 1), Retention(RetentionKind.ALL)
    shapes = planned_shapes(specs, dict(zip(specs, (all_tokens, state, state), strict=True)))
    assert shapes[name] == [(NUM_BLOCKS, 128, 4, 128)] * 2
    assert shapes["model.0.linear_attn"] == [(NUM_BLOCKS, *shape) for shape in WIDE.shapes]
    assert shapes["model.1.linear_attn"] == [(NUM_BLOCKS, *shape) for shape in NARROW.shapes]


def bytes_held(caches: dict[str, Any]) -> int:
    """Bytes of the storages behind the caches, each counted once."""
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for cache in caches.values()
        for tensor in cache
    }
    return sum(storages.values())


def test_bug_14_a_hybrid_on_310p_is_allocated_twice() -> None:
    page = HYBRID_PAGE["page_size_padded"]
    fields = {"block_size": 1024, "page_size_padded": page}
    float16 = torch.float16
    states = MambaSpec(shapes=((3, 8192), (32, 128, 128)), dtypes=(float16, float16), **fields)
    attention = FullAttentionSpec(num_kv_heads=4, head_size=128, dtype=float16, **fields)
    names = ["model.0.linear_attn", "model.1.self_attn.attn"]
    config = KVCacheConfig(
        NUM_BLOCKS,
        [KVCacheTensor(page * NUM_BLOCKS, names)],
        [KVCacheGroupSpec(names[:1], states), KVCacheGroupSpec(names[1:], attention)],
    )
    runner = StandInRunner([[(names[0], states, AscendAttentionBackend310)]])
    runner._acl_format = 29
    stock = NPUModelRunner310._allocate_kv_cache_tensors(runner, config)
    if bytes_held(stock) <= page * NUM_BLOCKS:
        pytest.fail(FIXED.format(14, "vllm-ascend"))
    assert bytes_held(stock) == (page + 2 * MIB) * NUM_BLOCKS


def install_our_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in kv_configs.FUNCTIONS:
        found = getattr(kv_cache_utils, name)
        monkeypatch.setattr(kv_cache_utils, name, getattr(found, "__wrapped__", found))
    engine_core.our_groups.apply()
    register_all_kvcache_specs(kv_configs.config())


def test_bug_16_values_of_two_sizes_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """One spec stands for both layers, and the second layer's page is too small."""
    target, draft = (
        FullAttentionSpec(
            block_size=128, num_kv_heads=4, head_size=192, head_size_v=value, dtype=BF16
        )
        for value in (128, 192)
    )
    specs = model([target], [draft])
    (group,) = stock_groups(specs)
    if len(getattr(group.kv_cache_spec, "kv_cache_specs", {})) == 2:
        pytest.fail(FIXED.format(16, "vLLM"))
    assert group.kv_cache_spec.head_size_v == 128

    install_our_groups(monkeypatch)
    (own,) = configs(specs)
    (group,) = own.kv_cache_groups
    kept = group.kv_cache_spec.kv_cache_specs
    assert [kept[name].head_size_v for name in group.layer_names] == [128, 192]
    pages = target.page_size_bytes + draft.page_size_bytes
    assert sum(tensor.size for tensor in own.kv_cache_tensors) == own.num_blocks * pages


def test_bug_10_latents_compared_with_hidden_states(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whether all layers are alike is asked by merging specs; the caller expects other errors."""
    hidden = HiddenStateCacheSpec(block_size=128, num_kv_heads=3, head_size=64, dtype=BF16)
    specs = model([latent()], [])
    specs.update(model([], [hidden]))
    try:
        latent().merge([latent(), hidden])
    except AttributeError as error:
        said = str(error)
    else:
        pytest.fail(FIXED.format(10, "vllm-ascend"))
    assert "scale_dim" in said
    install_our_groups(monkeypatch)
    (result,) = configs(specs)
    (group,) = result.kv_cache_groups
    assert sorted(group.layer_names) == sorted(specs)


class SeveralSizes(AscendAttentionBackend):
    """A backend whose first size is larger than the manager's blocks, as that of Ascend 310P."""

    @staticmethod
    def get_supported_kernel_block_sizes() -> list[int]:
        return AscendAttentionBackend310.get_supported_kernel_block_sizes()


def test_bug_13_views_have_the_block_tables_kernel_blocks() -> None:
    """Block tables take a size that fits the manager's blocks, views the backend's first."""
    groups = [
        attn(dense(block=64), backend=SeveralSizes),
        attn(dense(block=64), backend=SeveralSizes, prefix="w"),
    ]
    names = [name for group in groups for name, _, _ in group]
    assert select_common_block_size(64, [SeveralSizes]) == 64
    try:
        stock, _ = stock_caches(groups, [names])
    except (AssertionError, RuntimeError):
        pass  # no view of blocks of 128 over 64
    else:
        if {stock[name][0].shape[1] for name in names} == {64}:
            pytest.fail(FIXED.format(13, "vllm-ascend"))
    config = KVCacheConfig(
        NUM_BLOCKS,
        [KVCacheTensor(dense(block=64).page_size_bytes * NUM_BLOCKS, names)],
        [KVCacheGroupSpec([name], dense(block=64)) for name in names],
    )
    caches = PlannedRunner(config, dict.fromkeys(names, SeveralSizes)).caches()
    for name in names:
        assert [tuple(part.shape) for part in caches[name]] == [(NUM_BLOCKS, 64, 4, 128)] * 2
