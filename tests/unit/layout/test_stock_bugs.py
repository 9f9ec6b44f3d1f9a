# SPDX-License-Identifier: Apache-2.0
"""Layouts that vllm-ascend 0.23.0 gets wrong, at the level of the plan.

The stock formulas are those of vllm_ascend/worker/model_runner_v1.py, written down here; the runs
of stock code itself are in tests/emulated/layout/test_layout_stock_bugs.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from mkv_ascend.layout.component import Storage
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.plan import make_plan
from mkv_ascend.layout.pooling import PlacedLayer, Placement, Pool
from mkv_ascend.layout.proof import OverlapError, prove_pool
from mkv_ascend.layout.recipes import LayerFacts, layout_of
from tests.support.caches import specs
from tests.support.caches.layouts import CONV_BYTES, MIB, keys_and_values, qwen3_next, states


def stock_split(size: int, dims: tuple[int, int]) -> tuple[int, int]:
    """Bytes of keys and values: the size by a ratio in floating point, cut to an integer."""
    key, value = (int(size // (sum(dims) / dim)) for dim in dims)
    return key, value


@pytest.mark.parametrize(("key_dim", "value_dim"), [(192, 128), (96, 64), (80, 96)])
def test_bug_1_a_ratio_loses_a_byte(key_dim: int, value_dim: int) -> None:
    plan = make_plan([[keys_and_values("a", 4, key_dim, value_dim)]])
    lost = 0
    for num_blocks in range(1, 200):
        size = num_blocks * 128 * 4 * (key_dim + value_dim) * 2
        lost += sum(stock_split(size, (key_dim, value_dim))) != size
        views = plan.bind(num_blocks).views()["a"].views
        assert [view.shape for view in views] == [
            (num_blocks, 128, 4, key_dim),
            (num_blocks, 128, 4, value_dim),
        ]
        assert plan.bytes_per_block * num_blocks == size
    assert lost == 199, "stock's arithmetic is right now: the bug is fixed"


def test_bug_2_each_layer_of_a_pool_is_cut_by_its_own_sizes() -> None:
    """Pages of equal size, keys and values not: stock cuts both by the first layer's ratio."""
    full = keys_and_values("full", 8, 192, 64)
    window = keys_and_values("window", 8, 128, 128)
    assert full.page_bytes == window.page_bytes
    plan = make_plan([[full], [window]])
    views = plan.bind(10).views()
    assert [view.shape[-1] for view in views["full"].views] == [192, 64]
    assert [view.shape[-1] for view in views["window"].views] == [128, 128]
    # Contiguous components of other sizes cannot share bytes: a buffer each.
    (pool,) = plan.pools
    assert len(pool.buffers) == 4


def stock_hybrid_pool(num_draft_heads: int, dim: int) -> Pool:
    """A page of 2 MiB and a convolution, as stock shares it: keys and values are at its end."""
    page = CONV_BYTES + 2 * MIB

    def attention(layer: str, group: int, plane: int) -> PlacedLayer:
        rows = plane // 8
        keys = Placement("k", 0, page - 2 * plane, 0, plane, 8, rows, rows)
        values = Placement("v", 0, page - plane, 0, plane, 8, rows, rows)
        return PlacedLayer(layer, group, (keys, values))

    conv = Placement("conv", 0, 0, 0, CONV_BYTES, 1, CONV_BYTES, CONV_BYTES)
    ssm = Placement("ssm", 0, CONV_BYTES, 0, MIB, 1, MIB, MIB)
    layers = (
        PlacedLayer("model.layers.0", 0, (conv, ssm)),
        attention("model.layers.3", 1, MIB),
        attention("draft.layers.0", 2, num_draft_heads * dim * 1024 * 2),
    )
    return Pool(Storage.SPLIT, "as stock does", (page,), layers)


def test_bug_7_blocks_of_a_draft_overlap_other_blocks_of_the_target() -> None:
    # 4 heads of 128 have keys of 1 MiB, as large as the target's and its recurrent state: sound.
    prove_pool(0, stock_hybrid_pool(4, 128))
    # Those of 2 heads lie among the target's values, which are twice as large: block 1 of the
    # draft is in the second half of block 0 of the target.
    with pytest.raises(OverlapError) as refusal:
        prove_pool(0, stock_hybrid_pool(2, 128))
    first = CONV_BYTES + MIB
    assert (
        f"blocks of k of draft.layers.0 (bytes {first} to {first + MIB // 2} per block) and "
        f"v of model.layers.3 (bytes {first} to {first + MIB} per block) share bytes of buffer 0; "
        "give these layers pools of their own"
    ) in str(refusal.value)

    draft = keys_and_values("draft.layers.0", 2, 128, block=1024, role=Role.DRAFT)
    groups = qwen3_next()
    plan = make_plan([*groups[:3], [*groups[3], draft]])
    assert plan.bytes_per_block == 24 * MIB + 12 * CONV_BYTES + draft.page_bytes


def test_bug_7_with_a_group_of_the_drafts_own() -> None:
    draft = keys_and_values("draft.layers.0", 2, 128, block=1024, role=Role.DRAFT)
    plan = make_plan([[states("a", (3, 8192), (32, 128, 128))], [draft]])
    views = plan.bind(1).views()
    states_in, draft_in = ({view.buffer for view in views[name].views} for name in views)
    assert not states_in & draft_in


def planned(groups: list[dict[str, Any]], **facts: Any) -> dict[str, list[tuple[int, ...]]]:
    """Shapes by layer with two blocks, each layer from its own spec."""
    layouts = []
    for group in groups:
        of_layer = [(spec, LayerFacts(name, Role.TARGET, **facts)) for name, spec in group.items()]
        layouts.append([layout_of(spec, known) for spec, known in of_layer])
    views = make_plan(layouts).bind(2).views()
    return {name: [view.shape for view in layer.views] for name, layer in views.items()}


DENSE = specs.FullAttentionSpec(128, 8, 128)
DENSE_SHAPES = [(2, 128, 8, 128)] * 2


def test_bug_3_a_dense_draft_beside_sparse_attention() -> None:
    sparse = specs.AscendMLAAttentionSpec(128, 1, 704, sparse_head_dim=(512, 64, 128))
    shapes = planned([{"target": sparse, "draft": DENSE}])
    assert shapes["draft"] == DENSE_SHAPES
    assert [shape[-1] for shape in shapes["target"]] == [512, 64, 128]


def test_bug_4_a_dense_draft_beside_deepseek_v4() -> None:
    compressed = specs.AscendMLAAttentionSpec(
        128, 1, 512, compress_ratio=4, model_version="deepseek_v4"
    )
    shapes = planned([{"target": compressed}, {"draft": DENSE}])
    assert shapes == {"target": [(2, 128, 1, 512)], "draft": DENSE_SHAPES}


@pytest.mark.parametrize("name", ["backbone.layers.0.mixer", "model.layers.0.conv"])
def test_bug_5_states_of_any_name(name: str) -> None:
    mamba = specs.MambaSpec(128, ((3, 64), (4, 16, 16)), ("bfloat16", "float32"))
    assert planned([{name: mamba}]) == {name: [(2, 3, 64), (2, 4, 16, 16)]}


def test_bug_6_the_order_of_tensors_decides_nothing() -> None:
    mamba = specs.MambaSpec(128, ((3, 64), (128, 8, 128)), ("bfloat16", "bfloat16"))
    groups = [{"alone": DENSE, "mixed": DENSE}, {"states": mamba}]
    shapes = planned(groups)
    assert shapes["alone"] == shapes["mixed"] == DENSE_SHAPES
    assert planned(groups[::-1]) == shapes


def test_bug_9_latents_beside_a_longer_page_of_states() -> None:
    """vllm-ascend's MLA spec has a padded page that it does not count."""
    latent = specs.AscendMLAAttentionSpec(128, 1, 576, page_size_padded=1 << 20)
    mamba = specs.MambaSpec(128, ((3, 64), (8, 16, 16)), ("bfloat16", "float32"))
    shapes = planned([{"attention": latent}, {"states": mamba}], latent_dim=512, rope_dim=64)
    assert shapes["attention"] == [(2, 128, 1, 512), (2, 128, 1, 64)]


def test_bug_11_states_of_two_kinds() -> None:
    wide = specs.MambaSpec(128, ((3, 64), (8, 16, 16)), ("bfloat16", "float32"))
    narrow = specs.MambaSpec(128, ((32, 2),), ("bfloat16",))
    shapes = planned([{"wide": wide}, {"narrow": narrow}, {"attention": DENSE}])
    assert shapes["narrow"] == [(2, 32, 2)]
    assert shapes["attention"] == DENSE_SHAPES


def test_bug_12_blocks_are_split_with_one_group_too() -> None:
    shapes = planned([{"only": specs.FullAttentionSpec(256, 8, 128)}], kernel_block=128)
    assert shapes["only"] == [(4, 128, 8, 128)] * 2


def test_bug_16_value_sizes_are_not_merged() -> None:
    """vLLM merges 192/128 with 192/192 into 192/128; a plan keeps each layer's own."""
    plan = make_plan([[keys_and_values("a", 4, 192, 128), keys_and_values("b", 4, 192, 192)]])
    views = plan.bind(2).views()
    assert views["a"].views[1].shape == (2, 128, 4, 128)
    assert views["b"].views[1].shape == (2, 128, 4, 192)
    assert plan.bytes_per_block == 128 * 4 * (192 + 128 + 192 + 192) * 2
