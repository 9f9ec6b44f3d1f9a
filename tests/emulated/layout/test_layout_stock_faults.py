# SPDX-License-Identifier: Apache-2.0
"""Plans where vllm-ascend 0.23.0 has faults in specs, groups and bytes (``tests/layout_bugs.md``).

Those that a report names are run in its own code, too. Most raise nothing where they happen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

# Before anything else of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # noqa: F401  # isort: skip
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
from vllm_ascend.attention.attention_v1 import AscendAttentionBackend

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
from tests.support.caches.layer_cases import (
    BF16,
    CASES,
    COMPRESSED,
    DSA,
    GQA,
    HYBRID_PAGE,
    SFA,
    WINDOW,
    attn,
    dense,
    described,
    latent,
    mamba,
    planned,
    sparse,
    stock,
)
from tests.support.caches.planned_runner import PlannedRunner, aliases
from tests.support.caches.stock_caches import NUM_BLOCKS, Layers, stock_caches

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


WIDE = MambaSpec(block_size=128, shapes=((3, 8192), (32, 64, 64)), dtypes=(BF16, torch.float32))
NARROW = MambaSpec(block_size=128, shapes=((2, 1024),), dtypes=(BF16,))


def test_bug_11_attention_beside_states_of_two_sizes_keeps_its_own() -> None:
    """vllm-ascend pads attention to the last layer's states, and stays below the largest ones."""
    name = "model.9.self_attn.attn"
    specs = {"model.0.linear_attn": WIDE, "model.1.linear_attn": NARROW, name: dense()}
    state, all_tokens = Retention(RetentionKind.STATE, 1), Retention(RetentionKind.ALL)
    shapes = planned_shapes(specs, dict(zip(specs, (state, state, all_tokens), strict=True)))
    assert shapes[name] == [(NUM_BLOCKS, 128, 4, 128)] * 2
    assert shapes["model.0.linear_attn"] == [(NUM_BLOCKS, *shape) for shape in WIDE.shapes]
    assert shapes["model.1.linear_attn"] == [(NUM_BLOCKS, *shape) for shape in NARROW.shapes]


def install_our_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in kv_configs.FUNCTIONS:
        found = getattr(kv_cache_utils, name)
        monkeypatch.setattr(kv_cache_utils, name, getattr(found, "__wrapped__", found))
    engine_core.our_groups.apply()
    register_all_kvcache_specs(kv_configs.config())


def test_bug_16_values_of_two_sizes_stay_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one spec for both layers the second layer's page would be too small."""
    target, draft = (
        FullAttentionSpec(
            block_size=128, num_kv_heads=4, head_size=192, head_size_v=value, dtype=BF16
        )
        for value in (128, 192)
    )
    install_our_groups(monkeypatch)
    (own,) = configs(model([target], [draft]))
    (group,) = own.kv_cache_groups
    kept = group.kv_cache_spec.kv_cache_specs
    assert [kept[name].head_size_v for name in group.layer_names] == [128, 192]
    pages = target.page_size_bytes + draft.page_size_bytes
    assert sum(tensor.size for tensor in own.kv_cache_tensors) == own.num_blocks * pages


def test_bug_10_latents_beside_hidden_states_are_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM compares specs by merging them, which vllm-ascend's own cannot do with these."""
    hidden = HiddenStateCacheSpec(block_size=128, num_kv_heads=3, head_size=64, dtype=BF16)
    specs = {**model([latent()], []), **model([], [hidden])}
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
    """Views of vllm-ascend have the first size of the backend, its block tables one that fits."""
    names = ["model.0.self_attn.attn", "w.0.self_attn.attn"]
    assert select_common_block_size(64, [SeveralSizes]) == 64
    config = KVCacheConfig(
        NUM_BLOCKS,
        [KVCacheTensor(dense(block=64).page_size_bytes * NUM_BLOCKS, names)],
        [KVCacheGroupSpec([name], dense(block=64)) for name in names],
    )
    caches = PlannedRunner(config, dict.fromkeys(names, SeveralSizes)).caches()
    for name in names:
        assert [tuple(part.shape) for part in caches[name]] == [(NUM_BLOCKS, 64, 4, 128)] * 2


# Plans of layouts that vllm-ascend 0.23.0 fails at (``tests/layout_bugs.md``).

FULL = dense(192, 4, head_size_v=64)
STATES: Layers = [("model.9.linear_attn", mamba(), None)]
HYBRID = dense(256, 2, **HYBRID_PAGE)

BUGS: dict[str, Sequence[Layers]] = {
    "1: keys of 192, values of 128": [attn(dense(192, head_size_v=128), backend=GQA)],
    "2: a page of 192 and 64 shared with one of 128 and 128": [
        attn(FULL, backend=GQA),
        attn(WINDOW, backend=GQA, prefix="w"),
    ],
    "3: a dense draft beside sparse attention": [
        [*attn(*sparse((512, 64, 128)), backend=SFA), *attn(dense(), backend=GQA, prefix="d")]
    ],
    "4: a dense draft beside DeepSeek-V4": [
        [
            *attn(latent(head_size=512, **COMPRESSED), backend=DSA),
            *attn(dense(), backend=GQA, prefix="d"),
        ]
    ],
    "5: states of a layer that is not called linear_attn": [[("model.0.mixer", mamba(), None)]],
    "6: an attention layer before the first that shares with states": [
        attn(HYBRID, HYBRID, backend=GQA),
        STATES,
    ],
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_plan_serves_it(bug: str) -> None:
    groups = BUGS[bug]
    layouts = planned(groups)
    if bug.startswith("4"):
        # A row of DeepSeek-V4's cache may stand for several tokens: a block table of its own.
        layouts = [[layout] for layout in layouts[0]]
    made = materialize(make_plan(layouts).bind(NUM_BLOCKS), torch.device("npu:0"))
    for group in groups:
        for name, spec, _ in group:
            cache = made.caches[name]
            assert isinstance(cache, tuple | list)
            held = sum(tensor.numel() * tensor.element_size() for tensor in cache)
            padded = getattr(spec, "page_size_padded", None)
            if padded is None:
                assert held == spec.page_size_bytes * NUM_BLOCKS
            else:
                assert held <= padded * NUM_BLOCKS


# Recipes and plans against vllm-ascend's own specs, allocation and views, where those are right.
#
# Shapes, dtypes, strides, containers and bytes are equal for every layout that vllm-ascend 0.23.0
# serves correctly.


@pytest.mark.parametrize("case", CASES)
def test_a_plan_gives_what_vllm_ascend_gives(case: str) -> None:
    groups, shared = CASES[case]
    expected, stock_bytes = stock(groups, shared)
    plan = make_plan(planned(groups))
    made = materialize(plan.bind(NUM_BLOCKS), torch.device("npu:0"))
    assert {name: described(cache) for name, cache in made.caches.items()} == {
        name: described(cache) for name, cache in expected.items()
    }
    assert plan.bytes_per_block * NUM_BLOCKS == stock_bytes


def test_hidden_states_as_vllm_ascend_gives_them() -> None:
    from vllm.model_executor.models.extract_hidden_states import CacheOnlyAttentionBackend

    spec = HiddenStateCacheSpec(block_size=16, num_kv_heads=3, head_size=64, dtype=BF16)
    object.__setattr__(spec, "page_size_padded", 16 * 3 * 64 * 2 + 1024)
    groups = [[("cache_only_layers.0", spec, CacheOnlyAttentionBackend)]]
    expected, stock_bytes = stock(groups, shared=False)
    plan = make_plan(planned(groups))
    made = materialize(plan.bind(NUM_BLOCKS), torch.device("npu:0"))
    assert described(made.caches["cache_only_layers.0"]) == described(
        expected["cache_only_layers.0"]
    )
    assert plan.bytes_per_block * NUM_BLOCKS == stock_bytes
