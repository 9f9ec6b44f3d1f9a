# SPDX-License-Identifier: Apache-2.0
"""Every kind of cache that vllm-ascend 0.23.0 lays out: shapes, dtypes, strides and container."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from mkv_ascend.layout import recipes
from mkv_ascend.layout.component import Container, LayerLayout, LayoutError, Storage
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.plan import make_plan
from mkv_ascend.layout.recipes import (
    LayerFacts,
    build_layout,
    layout_of,
    register_recipe,
    tokens,
)
from tests.support.caches import specs

NUM_BLOCKS = 3


def layout(spec: Any, **facts: Any) -> LayerLayout:
    return layout_of(spec, LayerFacts("model.layers.0.anything", Role.TARGET, **facts))


def tensors(made: LayerLayout) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of each component with three blocks."""
    views = make_plan([[made]]).bind(NUM_BLOCKS).views()[made.layer].views
    # A size that is no whole number is equal to one, and no tensor has it.
    assert all(type(size) is int for view in views for size in (*view.shape, *view.strides))
    return {view.component: (view.dtype, view.shape) for view in views}


def contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return tuple(strides)


def assert_contiguous(made: LayerLayout) -> None:
    for view in make_plan([[made]]).bind(NUM_BLOCKS).views()[made.layer].views:
        assert view.strides == contiguous(view.shape)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (specs.FullAttentionSpec, Kind.FULL_ATTENTION),
        (specs.SinkFullAttentionSpec, Kind.FULL_ATTENTION),
        (specs.SlidingWindowSpec, Kind.SLIDING_WINDOW),
        (specs.ChunkedLocalAttentionSpec, Kind.CHUNKED_LOCAL),
        (specs.CrossAttentionSpec, Kind.CROSS_ATTENTION),
    ],
)
def test_l1_keys_and_values(spec: type[specs.AttentionSpec], kind: Kind) -> None:
    made = layout(spec(256, 8, 192, head_size_v=128), kernel_block=128)
    assert (made.kind, made.storage, made.container) == (kind, Storage.SPLIT, Container.TUPLE)
    assert tensors(made) == {
        "k": ("bfloat16", (6, 128, 8, 192)),
        "v": ("bfloat16", (6, 128, 8, 128)),
    }
    assert_contiguous(made)
    assert made.page_bytes == 256 * 8 * 320 * 2


def test_all_keys_on_each_rank() -> None:
    """A spec counts a share's tokens, and has the heads of all ranks for those of all shares."""
    spec = specs.FullAttentionSpec(128, 4, 64)
    made = layout(spec, kernel_block=512, ranks=4)
    assert tensors(made) == {
        "k": ("bfloat16", (3, 512, 1, 64)),
        "v": ("bfloat16", (3, 512, 1, 64)),
    }
    assert made.page_bytes == layout(spec).page_bytes
    assert made.tokens_per_block == 128
    with pytest.raises(LayoutError, match="key heads of its spec by 3 ranks"):
        layout(spec, ranks=3)


def test_all_keys_on_each_rank_share_a_block_table_with_shares() -> None:
    """Both split a block into as many kernel blocks, or one table could not serve both."""
    share = layout(specs.FullAttentionSpec(256, 1, 64), kernel_block=128)
    facts = LayerFacts("draft", Role.DRAFT, kernel_block=256, ranks=2)
    replicated = layout_of(specs.FullAttentionSpec(256, 2, 64), facts)
    views = make_plan([[share, replicated]]).bind(NUM_BLOCKS).views()
    assert [views[name].views[0].shape for name in (share.layer, "draft")] == [
        (6, 128, 1, 64),
        (6, 256, 1, 64),
    ]
    other = dataclasses.replace(facts, kernel_block=512)
    with pytest.raises(LayoutError, match="one block table cannot serve both"):
        make_plan([[share, layout_of(specs.FullAttentionSpec(256, 2, 64), other)]])


def test_l2_latent_and_rope() -> None:
    made = layout(specs.AscendMLAAttentionSpec(128, 1, 576), latent_dim=512, rope_dim=64)
    assert made.kind is Kind.MLA
    assert tensors(made) == {
        "latent": ("bfloat16", (3, 128, 1, 512)),
        "rope": ("bfloat16", (3, 128, 1, 64)),
    }


def test_l2_of_vllms_own_spec_which_knows_of_no_sparse_attention() -> None:
    made = layout(specs.MLAAttentionSpec(128, 1, 576), latent_dim=512, rope_dim=64)
    assert (made.kind, list(tensors(made))) == (Kind.MLA, ["latent", "rope"])


def test_l2_needs_to_know_how_much_is_rope() -> None:
    with pytest.raises(LayoutError, match=r"head size of 576 .* give latent_dim and rope_dim"):
        layout(specs.AscendMLAAttentionSpec(128, 1, 576))
    with pytest.raises(LayoutError, match="latent 512 and rope 128 are not the head size 576"):
        layout(specs.AscendMLAAttentionSpec(128, 1, 576), latent_dim=512, rope_dim=128)


def test_l3_quantised_latent_and_keys() -> None:
    # vllm-ascend counts 512 bytes of int8 and 64 elements of bfloat16 as 640 of int8.
    latent = layout(
        specs.AscendMLAAttentionSpec(128, 1, 640, dtype="int8"),
        latent_dim=512,
        rope_dim=64,
        key_dtype="int8",
        value_dtype="bfloat16",
    )
    assert tensors(latent) == {
        "latent": ("int8", (3, 128, 1, 512)),
        "rope": ("bfloat16", (3, 128, 1, 64)),
    }
    keys = layout(
        specs.FullAttentionSpec(128, 8, 128, dtype="int8"), key_dtype="int8", value_dtype="int8"
    )
    assert {dtype for dtype, _ in tensors(keys).values()} == {"int8"}
    # Bytes alone do not say how they are read.
    spec = specs.FullAttentionSpec(128, 8, 128, dtype="int8")
    mixed = layout(spec, key_dtype="float8_e4m3fn", value_dtype="float8_e5m2")
    assert [dtype for dtype, _ in tensors(mixed).values()] == ["float8_e4m3fn", "float8_e5m2"]


ROWS = 128
SPARSE = {
    # form: (spec fields, components)
    "L4": (
        {"sparse_head_dim": (512, 64, 128), "head_size": 704},
        {
            "latent": ("bfloat16", (3, ROWS, 1, 512)),
            "rope": ("bfloat16", (3, ROWS, 1, 64)),
            "indexer_k": ("bfloat16", (3, ROWS, 1, 128)),
        },
    ),
    "L4, replicas": (
        {
            "sparse_head_dim": (512, 64, 128),
            "head_size": 704,
            "sfa_dcp_replicated_indexer_size": 4,
            "page": ROWS * (512 + 64 + 4 * 128) * 2,
        },
        {
            "latent": ("bfloat16", (3, ROWS, 1, 512)),
            "rope": ("bfloat16", (3, ROWS, 1, 64)),
            "indexer_k": ("bfloat16", (12, ROWS, 1, 128)),
        },
    ),
    "L5": (
        {"sparse_head_dim": (512, 64, 0), "head_size": 576},
        {
            "latent": ("bfloat16", (3, ROWS, 1, 512)),
            "rope": ("bfloat16", (3, ROWS, 1, 64)),
        },
    ),
    "L6": (
        {
            "sparse_head_dim": (512, 64, 128),
            "head_size": 704,
            "cache_sparse_li_c8": True,
            "page": ROWS * (576 * 2 + 128 + 2),
        },
        {
            "latent": ("bfloat16", (3, ROWS, 1, 512)),
            "rope": ("bfloat16", (3, ROWS, 1, 64)),
            "indexer_k": ("int8", (3, ROWS, 1, 128)),
            "indexer_scale": ("float16", (3, ROWS, 1, 1)),
        },
    ),
    "L6, replicas": (
        {
            "sparse_head_dim": (512, 64, 128),
            "head_size": 704,
            "cache_sparse_li_c8": True,
            "sfa_dcp_replicated_indexer_size": 4,
            "page": ROWS * (576 * 2 + 4 * (128 + 2)),
        },
        {
            "latent": ("bfloat16", (3, ROWS, 1, 512)),
            "rope": ("bfloat16", (3, ROWS, 1, 64)),
            "indexer_k": ("int8", (12, ROWS, 1, 128)),
            "indexer_scale": ("float16", (12, ROWS, 1, 1)),
        },
    ),
    "L6, A5": (
        {
            "sparse_head_dim": (512, 64, 128),
            "head_size": 704,
            "cache_sparse_li_c8": True,
            "c8_k_cache_dtype": "float8_e4m3fn",
            "c8_k_scale_cache_dtype": "float32",
            "page": ROWS * (576 * 2 + 128 + 4),
        },
        {
            "latent": ("bfloat16", (3, ROWS, 1, 512)),
            "rope": ("bfloat16", (3, ROWS, 1, 64)),
            "indexer_k": ("float8_e4m3fn", (3, ROWS, 1, 128)),
            "indexer_scale": ("float32", (3, ROWS, 1, 1)),
        },
    ),
    "L7": (
        {
            "sparse_head_dim": (656, 0, 128),
            "head_size": 784,
            "cache_sparse_sfa_c8": True,
            "page": ROWS * (656 + 128 * 2),
        },
        {
            "latent": ("int8", (3, ROWS, 1, 656)),
            "indexer_k": ("bfloat16", (3, ROWS, 1, 128)),
        },
    ),
    "L8": (
        {
            "sparse_head_dim": (656, 0, 128),
            "head_size": 784,
            "cache_sparse_sfa_c8": True,
            "cache_sparse_li_c8": True,
            "page": ROWS * (656 + 128 + 2),
        },
        {
            "latent": ("int8", (3, ROWS, 1, 656)),
            "indexer_k": ("int8", (3, ROWS, 1, 128)),
            "indexer_scale": ("float16", (3, ROWS, 1, 1)),
        },
    ),
    "L9": (
        {
            "sparse_head_dim": (656, 0, 0),
            "head_size": 656,
            "cache_sparse_sfa_c8": True,
            "page": ROWS * 656,
        },
        {"latent": ("int8", (3, ROWS, 1, 656))},
    ),
}


@pytest.mark.parametrize("form", SPARSE)
def test_l4_to_l9_sparse_attention(form: str) -> None:
    fields, expected = SPARSE[form]
    made = layout(specs.AscendMLAAttentionSpec(block_size=ROWS, num_kv_heads=1, **fields))
    assert made.kind is Kind.SPARSE_MLA
    assert made.container is Container.TUPLE
    assert tensors(made) == expected
    assert_contiguous(made)


def test_sparse_attention_whose_indexer_is_a_layer_of_its_own() -> None:
    """As vllm-ascend 0.30.0rc2 has it: the main cache packed or not, keys alone or with scales."""
    packed = specs.AscendMLAAttentionSpec(ROWS, 1, 656, "int8", cache_sparse_sfa_c8=True)
    assert tensors(layout(packed)) == {"latent": ("int8", (3, ROWS, 1, 656))}
    assert (layout(packed).kind, layout(packed).container) == (Kind.SPARSE_MLA, Container.TUPLE)
    keys = specs.AscendSFAIndexerCacheSpec(
        ROWS, 1, 128, "bfloat16", sfa_dcp_replicated_indexer_size=2
    )
    assert tensors(layout(keys)) == {"indexer_k": ("bfloat16", (6, ROWS, 1, 128))}
    scaled = specs.AscendSFAIndexerCacheSpec(
        ROWS, 1, 128, "int8", scale_dim=1, scale_dtype="float16"
    )
    assert tensors(layout(scaled)) == {
        "indexer_k": ("int8", (3, ROWS, 1, 128)),
        "indexer_scale": ("float16", (3, ROWS, 1, 1)),
    }
    assert layout(scaled).kind is Kind.SPARSE_MLA
    assert_contiguous(layout(scaled))
    replicated = dataclasses.replace(scaled, sfa_dcp_replicated_indexer_size=2)
    assert tensors(layout(replicated)) == {
        "indexer_k": ("int8", (6, ROWS, 1, 128)),
        "indexer_scale": ("float16", (6, ROWS, 1, 1)),
    }


GATED_DELTA_NET = specs.MambaSpec(
    1024, ((3, 8192), (32, 128, 128)), ("bfloat16", "bfloat16"), page_size_padded=3 << 20
)


def test_l10_states() -> None:
    made = layout(GATED_DELTA_NET)
    assert (made.kind, made.container) == (Kind.MAMBA, Container.LIST)
    assert tensors(made) == {
        "conv": ("bfloat16", (3, 3, 8192)),
        "ssm": ("bfloat16", (3, 32, 128, 128)),
    }
    assert_contiguous(made)
    # The padding of the spec makes pages equal; planes are, without it.
    assert made.padding_bytes == 0


@pytest.mark.parametrize(
    ("shapes", "names"),
    [
        (((2048, 2),), ["conv"]),
        (((8, 128, 128),), ["ssm"]),
        (((3, 64), (3, 64), (3, 64), (8, 16, 16)), ["conv_0", "conv_1", "conv_2", "ssm"]),
    ],
)
def test_l10_states_of_other_layers(shapes: tuple[tuple[int, ...], ...], names: list[str]) -> None:
    made = layout(specs.MambaSpec(16, shapes, ("float32",) * len(shapes)))
    assert [part.name for part in made.components] == names


def test_l11_keys_and_values_share_a_buffer_with_states() -> None:
    states = layout(GATED_DELTA_NET)
    keys = layout_of(
        specs.FullAttentionSpec(1024, 2, 256, page_size_padded=3 << 20),
        LayerFacts("model.layers.3.anything", Role.TARGET, kernel_block=128),
    )
    plan = make_plan([[states], [keys]])
    (pool,) = plan.pools
    conv, plane = 3 * 8192 * 2, 1 << 20
    assert (pool.storage, pool.bytes_per_block) == (Storage.SPLIT, conv + 2 * plane)
    views = plan.bind(NUM_BLOCKS).views()
    buffers = {v.component: v.buffer for layer in views.values() for v in layer.views}
    # The plane of the recurrent state is the plane of the keys, at the same bytes.
    assert buffers["ssm"] == buffers["k"]
    assert views[keys.layer].views[0].shape == (24, 128, 2, 256)


def test_l12_latents_share_a_buffer_with_states() -> None:
    states = layout(specs.MambaSpec(128, ((3, 64), (16, 128, 32)), ("bfloat16", "bfloat16")))
    latent = layout_of(
        specs.AscendMLAAttentionSpec(128, 1, 576),
        LayerFacts("other", Role.TARGET, latent_dim=512, rope_dim=64),
    )
    plan = make_plan([[states], [latent]])
    assert plan.bytes_per_block == 3 * 64 * 2 + 128 * 576 * 2
    assert len(plan.pools) == 1


def test_l13_hidden_states() -> None:
    made = layout(specs.HiddenStateCacheSpec(128, 3, 64, page_size_padded=128 * 3 * 64 * 2 + 512))
    assert (made.kind, made.container) == (Kind.HIDDEN_STATE, Container.TENSOR)
    assert (made.storage, made.padding_bytes) == (Storage.PAGED, 512)
    (view,) = make_plan([[made]]).bind(NUM_BLOCKS).views()[made.layer].views
    assert (view.component, view.shape) == ("hidden", (3, 128, 3, 64))
    assert view.strides == (128 * 3 * 64 + 256, 192, 64, 1)


@pytest.mark.parametrize("ratio", [4, 128])
def test_l14_compressed_latents(ratio: int) -> None:
    spec = specs.AscendMLAAttentionSpec(
        128, 1, 512, compress_ratio=ratio, model_version="deepseek_v4"
    )
    made = layout(spec)
    assert (made.kind, made.container) == (Kind.COMPRESSED_MLA, Container.LIST)
    assert made.storage is Storage.PAGED
    assert made.tokens_per_block == 128 * ratio
    assert tensors(made) == {"latent": ("bfloat16", (3, 128, 1, 512))}


def test_l14_of_vllms_own_spec_keeps_fewer_rows() -> None:
    spec = specs.MLAAttentionSpec(256, 1, 512, compress_ratio=4, model_version="deepseek_v4")
    made = layout(spec)
    assert made.tokens_per_block == 256
    assert tensors(made) == {"latent": ("bfloat16", (3, 64, 1, 512))}


def test_l14_of_vllm_0_30_has_blocks_and_kernel_blocks_in_tokens() -> None:
    spec = specs.AscendMLAAttentionSpecOf030(
        512, 1, 512, tokens_per_state=4, model_version="deepseek_v4"
    )
    whole = layout(spec)
    assert (whole.kind, whole.container) == (Kind.COMPRESSED_MLA, Container.LIST)
    assert (whole.tokens_per_block, whole.kernel_block) == (512, None)
    assert tensors(whole) == {"latent": ("bfloat16", (3, 128, 1, 512))}
    split = layout(spec, kernel_block=256)
    assert (split.tokens_per_block, split.kernel_block) == (512, 64)
    assert tensors(split) == {"latent": ("bfloat16", (6, 64, 1, 512))}


def test_l16_of_vllm_0_30_has_the_scales_of_as_many_rows() -> None:
    spec = specs.AscendMLAAttentionSpecOf030(
        512,
        1,
        128,
        dtype="int8",
        tokens_per_state=4,
        model_version="deepseek_v4",
        scale_dim=1,
        scale_dtype="float16",
    )
    assert tensors(layout(spec)) == {
        "indexer_k": ("int8", (3, 128, 1, 128)),
        "indexer_scale": ("float16", (3, 128, 1, 1)),
    }


@pytest.mark.parametrize(
    ("rows", "dim", "dtype", "page", "version", "name"),
    [
        (128, 512, "bfloat16", 131072, "deepseek_v4", "latent"),
        (128, 640, "float8_e4m3fn", 81920, "deepseek_v4", "latent"),
        (8, 512, "float32", 16640, None, "compressor_state"),
        (8, 2048, "float32", 131072, None, "compressor_state"),
        (16, 1024, "float32", 81920, None, "compressor_state"),
    ],
)
def test_l15_windows_and_compressor_states(
    rows: int, dim: int, dtype: str, page: int, version: str | None, name: str
) -> None:
    spec = specs.AscendSlidingWindowMLASpec(
        rows, 1, dim, dtype=dtype, page_size_padded=page, model_version=version
    )
    made = layout(spec)
    item = specs.ITEM_BYTES[dtype]
    assert (made.page_bytes, made.container) == (page, Container.LIST)
    assert (made.kind, made.storage) == (Kind.COMPRESSED_MLA, Storage.PAGED)
    (view,) = make_plan([[made]]).bind(NUM_BLOCKS).views()[made.layer].views
    assert (view.component, view.shape) == (name, (3, rows, 1, dim))
    assert view.strides == (page // item, dim, dim, 1)


def test_l15_of_vllms_own_spec_keeps_fewer_rows() -> None:
    spec = specs.SlidingWindowMLASpec(256, 1, 512, compress_ratio=4, model_version="deepseek_v4")
    assert layout(spec).tokens_per_block == 256
    assert tensors(layout(spec)) == {"latent": ("bfloat16", (3, 64, 1, 512))}


INDEXER = specs.AscendMLAAttentionSpec(
    128,
    1,
    128,
    dtype="int8",
    compress_ratio=4,
    model_version="deepseek_v4",
    scale_dim=1,
    scale_dtype="float16",
)


def test_l16_indexer_keys_with_their_scales_in_one_page() -> None:
    made = layout(INDEXER)
    assert made.page_bytes == 16640
    keys, scales = make_plan([[made]]).bind(NUM_BLOCKS).views()[made.layer].views
    assert (keys.shape, keys.strides) == ((3, 128, 1, 128), (16640, 128, 128, 1))
    assert (scales.shape, scales.strides) == ((3, 128, 1, 1), (8320, 1, 1, 1))
    assert (keys.offset_bytes, scales.offset_bytes) == (0, 128 * 128)
    assert tensors(made).keys() == {"indexer_k", "indexer_scale"}


def test_l17_indexer_of_a5_has_a_view_of_both() -> None:
    spec = specs.AscendMLAAttentionSpec(
        128,
        1,
        128,
        dtype="float8_e4m3fn",
        compress_ratio=4,
        model_version="deepseek_v4",
        scale_dim=1,
        scale_dtype="float32",
    )
    made = layout(spec, full_indexer_view=True)
    assert made.page_bytes == 16896
    _, _, whole = make_plan([[made]]).bind(NUM_BLOCKS).views()[made.layer].views
    assert (whole.shape, whole.strides) == ((3, 128, 1, 132), (16896, 132, 132, 1))
    assert (whole.component, whole.dtype) == ("indexer_row", "float8_e4m3fn")
    assert whole.offset_bytes == 0
    with pytest.raises(LayoutError, match="overlays a page; storage must be PAGED"):
        layout(spec, full_indexer_view=True, takes_strides=True)


def test_strides_are_taken_where_the_operators_take_them() -> None:
    made = layout(specs.FullAttentionSpec(256, 8, 128), kernel_block=128, takes_strides=True)
    assert made.storage is Storage.PACKED
    keys, values = make_plan([[made]]).bind(NUM_BLOCKS).views()[made.layer].views
    page = 128 * 8 * 128
    assert keys.strides == values.strides == (2 * page, 1024, 128, 1)
    assert values.offset_bytes == page * 2


class ConvolutionCacheSpec:
    """A kind that this package does not know."""

    block_size = 16
    page_size_bytes = 16 * 4 * 2


def test_a_new_kind_is_one_recipe_and_one_registration(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recipes, "_RECIPES", dict(recipes._RECIPES))
    with pytest.raises(LayoutError, match=r"no recipe .* ConvolutionCacheSpec; .* register_recipe"):
        layout(ConvolutionCacheSpec())

    def recipe(spec: Any, facts: LayerFacts) -> LayerLayout:
        part = tokens("window", spec.block_size, 1, 4, "float16")
        return build_layout(spec, facts, Kind.MAMBA, [part])

    register_recipe("ConvolutionCacheSpec", recipe)
    assert layout(ConvolutionCacheSpec()).page_bytes == 128
    with pytest.raises(ValueError, match="there is a recipe for ConvolutionCacheSpec"):
        register_recipe("ConvolutionCacheSpec", recipe)


def test_a_spec_and_its_components_must_agree() -> None:
    with pytest.raises(LayoutError, match=r"counts 100 bytes per block, its components need 81920"):
        layout(specs.AscendMLAAttentionSpec(128, 1, 576, sparse_head_dim=(256, 64, 0), page=100))


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (specs.EncoderOnlyAttentionSpec(128, 8, 128), "keeps no cache; leave the layer out"),
        (
            specs.FullAttentionSpec(100, 8, 128),
            "anything: k: tokens of a block by kernel block: 100 is not a multiple of 128",
        ),
        (specs.FullAttentionSpec(128, 8, 128, dtype="complex64"), "'complex64' is not known"),
    ],
)
def test_what_cannot_be_is_refused(spec: specs.AttentionSpec, said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        layout(spec, kernel_block=128)


@pytest.mark.parametrize("field", ["cache_dtype_str", "tq_slot_size"])
def test_formats_of_other_devices_are_missing_by_name(field: str) -> None:
    spec = specs.MLAAttentionSpec(128, 1, 576)
    object.__setattr__(spec, field, {"cache_dtype_str": "fp8_ds_mla", "tq_slot_size": 7}[field])
    with pytest.raises(NotImplementedError, match=r"fp8_ds_mla|TurboQuant"):
        layout(spec, latent_dim=512, rope_dim=64)
