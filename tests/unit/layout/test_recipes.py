# SPDX-License-Identifier: Apache-2.0
"""Every kind of cache that vllm-ascend 0.23.0 lays out: shapes, dtypes, strides and container."""

import dataclasses
from typing import Any

import pytest

from mkv_ascend.layout import recipes
from mkv_ascend.layout.component import Container, LayerLayout, LayoutError, Storage
from mkv_ascend.layout.kind import Kind, Role
from mkv_ascend.layout.plan import make_plan
from mkv_ascend.layout.recipes import LayerFacts, build_layout, layout_of, register_recipe, tokens
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
    assert tensors(made) == {"k": ("bfloat16", (3, 512, 1, 64)), "v": ("bfloat16", (3, 512, 1, 64))}
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


def test_l2_needs_to_know_how_much_is_rope() -> None:
    with pytest.raises(LayoutError, match=r"head size of 576 .* give latent_dim and rope_dim"):
        layout(specs.AscendMLAAttentionSpec(128, 1, 576))
    with pytest.raises(LayoutError, match="latent 512 and rope 128 are not the head size 576"):
        layout(specs.AscendMLAAttentionSpec(128, 1, 576), latent_dim=512, rope_dim=128)


ROWS = 128
DSA, PACKED = (512, 64, 128), (656, 0, 128)
"""Sizes of latent, rope and indexer keys; a packed latent has its rope and scales in its bytes."""
LATENT, ROPE = ("latent", "bfloat16", 512), ("rope", "bfloat16", 64)
PACKED_LATENT = ("latent", "int8", 656)
INT8, SCALES = ("indexer_k", "int8", 128), ("indexer_scale", "float16", 1)
BF16 = ("indexer_k", "bfloat16", 128)
OF_A5 = {"c8_k_cache_dtype": "float8_e4m3fn", "c8_k_scale_cache_dtype": "float32"}
FOUR = {"sfa_dcp_replicated_indexer_size": 4}
LI, SFA = {"cache_sparse_li_c8": True}, {"cache_sparse_sfa_c8": True}
SPARSE: dict[str, tuple[tuple[int, int, int], dict[str, Any], int | None, list[Any]]] = {
    # form: (sizes, fields of the spec, bytes of a row, components)
    "L4": (DSA, {}, None, [LATENT, ROPE, BF16]),
    "L4, replicas": (DSA, FOUR, (512 + 64 + 4 * 128) * 2, [LATENT, ROPE, BF16]),
    "L5": ((512, 64, 0), {}, None, [LATENT, ROPE]),
    "L6": (DSA, LI, 576 * 2 + 128 + 2, [LATENT, ROPE, INT8, SCALES]),
    "L6, replicas": (DSA, LI | FOUR, 576 * 2 + 4 * (128 + 2), [LATENT, ROPE, INT8, SCALES]),
    "L6, A5": (
        *(DSA, LI | OF_A5, 576 * 2 + 128 + 4),
        [LATENT, ROPE, ("indexer_k", "float8_e4m3fn", 128), ("indexer_scale", "float32", 1)],
    ),
    "L7": (PACKED, SFA, 656 + 128 * 2, [PACKED_LATENT, BF16]),
    "L8": (PACKED, SFA | LI, 656 + 128 + 2, [PACKED_LATENT, INT8, SCALES]),
    "L9": ((656, 0, 0), SFA, 656, [PACKED_LATENT]),
}


@pytest.mark.parametrize("form", SPARSE)
def test_l4_to_l9_sparse_attention(form: str) -> None:
    sizes, fields, row, components = SPARSE[form]
    page = None if row is None else ROWS * row
    made = layout(
        specs.AscendMLAAttentionSpec(
            ROWS, 1, sum(sizes), sparse_head_dim=sizes, page=page, **fields
        )
    )
    assert made.kind is Kind.SPARSE_MLA
    assert made.container is Container.TUPLE
    replicas = fields.get("sfa_dcp_replicated_indexer_size", 1)
    assert list(tensors(made).items()) == [
        (name, (dtype, (3 * replicas if "indexer" in name else 3, ROWS, 1, dim)))
        for name, dtype, dim in components
    ]
    assert_contiguous(made)


V4 = {"model_version": "deepseek_v4"}
MLA, DSV4 = specs.AscendMLAAttentionSpec, specs.AscendMLAAttentionSpecOf030
INDEXER = specs.AscendSFAIndexerCacheSpec
TWO_PARTS = {"latent_dim": 512, "rope_dim": 64}
MIXED = {"key_dtype": "int8", "value_dtype": "bfloat16"}
SCALED = {"scale_dim": 1, "scale_dtype": "float16"}
TWICE = {"sfa_dcp_replicated_indexer_size": 2}
OTHER_FORMS: dict[str, tuple[Any, dict[str, Any], tuple[int, int], list[Any]]] = {
    # form: (spec, facts, blocks and rows of three blocks, components)
    "L2": (MLA(128, 1, 576), TWO_PARTS, (3, 128), [LATENT, ROPE]),
    # It knows of no sparse attention.
    "L2 of vLLM": (specs.MLAAttentionSpec(128, 1, 576), TWO_PARTS, (3, 128), [LATENT, ROPE]),
    # vllm-ascend counts 512 bytes of int8 and 64 elements of bfloat16 as 640 of int8.
    "L3": (MLA(128, 1, 640, "int8"), TWO_PARTS | MIXED, (3, 128), [("latent", "int8", 512), ROPE]),
    # As vllm-ascend 0.30.0rc2 has sparse attention, whose indexer is a layer of its own.
    "L9 of 0.30": (MLA(ROWS, 1, 656, "int8", **SFA), {}, (3, ROWS), [PACKED_LATENT]),
    "L4 of 0.30": (INDEXER(ROWS, 1, 128, **TWICE), {}, (6, ROWS), [BF16]),
    "L6 of 0.30": (INDEXER(ROWS, 1, 128, "int8", **SCALED), {}, (3, ROWS), [INT8, SCALES]),
    "L6 of 0.30, replicas": (
        *(INDEXER(ROWS, 1, 128, "int8", **SCALED, **TWICE), {}, (6, ROWS)),
        [INT8, SCALES],
    ),
}
COMPRESSED: dict[str, tuple[Any, int | None, int, tuple[int, int], list[Any]]] = {
    # form: (spec, kernel block, tokens of a block, blocks and rows of three blocks, components)
    "L14, 4": (MLA(128, 1, 512, compress_ratio=4, **V4), None, 512, (3, 128), [LATENT]),
    "L14, 128": (MLA(128, 1, 512, compress_ratio=128, **V4), None, 16384, (3, 128), [LATENT]),
    # vLLM's own specs keep fewer rows.
    "L14 of vLLM": (
        *(specs.MLAAttentionSpec(256, 1, 512, compress_ratio=4, **V4), None, 256, (3, 64)),
        [LATENT],
    ),
    "L15 of vLLM": (
        *(specs.SlidingWindowMLASpec(256, 1, 512, compress_ratio=4, **V4), None, 256, (3, 64)),
        [LATENT],
    ),
    # vLLM 0.30 has blocks and kernel blocks in tokens.
    "L14 of 0.30": (DSV4(512, 1, 512, tokens_per_state=4, **V4), None, 512, (3, 128), [LATENT]),
    "L14, split": (DSV4(512, 1, 512, tokens_per_state=4, **V4), 256, 512, (6, 64), [LATENT]),
    "L16 of 0.30": (
        *(DSV4(512, 1, 128, "int8", tokens_per_state=4, **SCALED, **V4), None, 512, (3, 128)),
        [INT8, SCALES],
    ),
}


@pytest.mark.parametrize("form", OTHER_FORMS)
def test_latents_and_indexers_of_other_forms(form: str) -> None:
    spec, facts, rows, components = OTHER_FORMS[form]
    made = layout(spec, **facts)
    assert made.kind is (Kind.MLA if facts else Kind.SPARSE_MLA)
    assert made.container is Container.TUPLE
    expected = [(name, (dtype, (*rows, 1, dim))) for name, dtype, dim in components]
    assert list(tensors(made).items()) == expected
    assert_contiguous(made)


@pytest.mark.parametrize("form", COMPRESSED)
def test_l14_to_l16_compressed_rows(form: str) -> None:
    spec, kernel_block, tokens_per_block, rows, components = COMPRESSED[form]
    made = layout(spec, kernel_block=kernel_block)
    assert (made.kind, made.container) == (Kind.COMPRESSED_MLA, Container.LIST)
    assert made.storage is Storage.PAGED
    assert made.tokens_per_block == tokens_per_block
    assert made.kernel_block == (None if kernel_block is None else rows[1])
    expected = [(name, (dtype, (*rows, 1, dim))) for name, dtype, dim in components]
    assert list(tensors(made).items()) == expected


@pytest.mark.parametrize("dtypes", [("int8", "int8"), ("float8_e4m3fn", "float8_e5m2")])
def test_l3_quantised_keys(dtypes: tuple[str, str]) -> None:
    """Bytes alone do not say how they are read."""
    spec = specs.FullAttentionSpec(128, 8, 128, dtype="int8")
    made = layout(spec, key_dtype=dtypes[0], value_dtype=dtypes[1])
    assert [dtype for dtype, _ in tensors(made).values()] == [*dtypes]


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


def test_l16_indexer_keys_with_their_scales_in_one_page() -> None:
    made = layout(MLA(128, 1, 128, "int8", compress_ratio=4, **SCALED, **V4))
    assert made.page_bytes == 16640
    keys, scales = make_plan([[made]]).bind(NUM_BLOCKS).views()[made.layer].views
    assert (keys.shape, keys.strides) == ((3, 128, 1, 128), (16640, 128, 128, 1))
    assert (scales.shape, scales.strides) == ((3, 128, 1, 1), (8320, 1, 1, 1))
    assert (keys.offset_bytes, scales.offset_bytes) == (0, 128 * 128)
    assert tensors(made).keys() == {"indexer_k", "indexer_scale"}


def test_l17_indexer_of_a5_has_a_view_of_both() -> None:
    scales = {"scale_dim": 1, "scale_dtype": "float32"}
    spec = MLA(128, 1, 128, "float8_e4m3fn", compress_ratio=4, **scales, **V4)
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


def test_a_new_kind_is_one_recipe_and_one_registration(monkeypatch: pytest.MonkeyPatch) -> None:
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
