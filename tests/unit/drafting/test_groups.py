# SPDX-License-Identifier: Apache-2.0
"""Layers of a draft sorted into groups, and what builders are asked for each of them."""

import copy
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheGroupSpec,
    MambaSpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
)

from mkv_ascend.drafting.draft import shallow_copy
from mkv_ascend.drafting.needs import distinct_needs
from tests.support import hosts
from tests.support.fake_draft import FakeBuilder
from tests.unit.drafting.fake_engine import Case, Engine

_layer_groups = hosts.module("drafting.layer_groups")
find_groups = _layer_groups.find_groups
refuse_recurrent_layers = _layer_groups.refuse_recurrent_layers


class Dense:
    pass


class Other:
    pass


def layer(backend=Dense, heads=4):
    return SimpleNamespace(get_attn_backend=lambda: backend, num_heads=heads)


def full(block_size=256, heads=2):
    return FullAttentionSpec(
        block_size=block_size, num_kv_heads=heads, head_size=64, dtype=torch.float16
    )


def window(block_size=128):
    return SlidingWindowSpec(
        block_size=block_size, num_kv_heads=2, head_size=64, dtype=torch.float16, sliding_window=32
    )


TARGET_ONLY = KVCacheGroupSpec(["layers.0"], full())


def test_layers_of_one_kind_and_one_kv_group_are_one_group_in_their_order():
    kv_groups = [
        TARGET_ONLY,
        KVCacheGroupSpec(["draft.10", "draft.2"], full()),
        KVCacheGroupSpec(["draft.1"], window()),
    ]
    layers = {name: layer() for name in ("draft.1", "draft.2", "draft.10")}
    groups = find_groups(layers, kv_groups, [128, 128, 64])
    assert [group.layer_names for group in groups.groups] == [("draft.1",), ("draft.2", "draft.10")]
    assert [group.kv_group for group in groups.groups] == [2, 1]
    assert groups.kv_groups == (2, 1)
    assert groups.block_sizes == (64, 128)
    assert [group.table for group in groups.groups] == [0, 1]
    assert [group.spec.block_size for group in groups.groups] == [64, 128]
    assert groups.layers() == (("draft.1", 0), ("draft.2", 1), ("draft.10", 1))
    assert groups.describe() == (
        f"KV group 2: 1 layers of SlidingWindowSpec on {groups.groups[0].backend.__name__}; "
        f"KV group 1: 2 layers of FullAttentionSpec on {groups.groups[1].backend.__name__}"
    )


@pytest.mark.parametrize("other", [layer(backend=Other), layer(heads=8)], ids=["backend", "heads"])
def test_unlike_layers_of_one_kv_group_share_its_table_only(other):
    kv_groups = [KVCacheGroupSpec(["a", "b"], full())]
    groups = find_groups({"a": layer(), "b": other}, kv_groups, [128])
    assert [group.layer_names for group in groups.groups] == [("a",), ("b",)]
    assert groups.kv_groups == (0,)
    assert [group.table for group in groups.groups] == [0, 0]


def test_layers_that_see_no_later_row_of_a_block_are_a_group_of_their_own():
    kv_groups = [KVCacheGroupSpec(["a", "b", "c"], full())]
    layers = {name: layer() for name in "abc"}
    groups = find_groups(layers, kv_groups, [128], causal={"b"}).groups
    assert [(group.layer_names, group.causal) for group in groups] == [
        (("a", "c"), False),
        (("b",), True),
    ]


def test_layers_of_one_kv_group_with_specs_of_their_own():
    specs = {"a": full(heads=2), "b": full(heads=4)}
    kv_groups = [KVCacheGroupSpec(["a", "b"], UniformTypeKVCacheSpecs(256, specs))]
    groups = find_groups({"a": layer(), "b": layer()}, kv_groups, [128])
    assert [group.spec.num_kv_heads for group in groups.groups] == [2, 4]


def test_a_layer_without_a_kv_group_is_refused_by_name():
    with pytest.raises(ValueError, match=r"draft\.7 lies in none of the engine's 1 KV groups"):
        find_groups({"draft.7": layer()}, [TARGET_ONLY], [128])


def test_recurrent_drafts_are_refused_by_their_first_such_layer():
    state = MambaSpec(block_size=128, shapes=((2, 2),), dtypes=(torch.float32,))
    refuse_recurrent_layers({"a": full(), "b": window()})
    with pytest.raises(NotImplementedError, match=r"1 of its 2 layers \(first: conv\)"):
        refuse_recurrent_layers({"a": full(), "conv": state})


@torch.inference_mode()
@pytest.mark.parametrize("shares", [(True,) * 3, (False,) * 3, (True, False, True)])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_builders_run_as_often_as_is_said(shares: tuple[bool, ...], k: int) -> None:
    engine = Engine(Case("attention", k, (4, 8, 16), shares, (False,) * 3))
    engine.step()
    assert engine.needs.builds
    assert engine.needs.builds == engine.needs.builds_per_proposal(later_passes=k - 1)


class OtherBuilder(FakeBuilder):
    """Of another backend, whose metadata is of another class."""


def test_builders_of_two_backends_never_share_a_run() -> None:
    builders = [
        FakeBuilder(True, False),
        OtherBuilder(True, False),
        FakeBuilder(True, False),
        FakeBuilder(True, True),
        OtherBuilder(True, False),
    ]
    needs = [(need.builder, need.groups) for need in distinct_needs(builders)]
    assert needs == [(builders[0], (0, 2)), (builders[1], (1, 4)), (builders[3], (3,))]


@torch.inference_mode()
def test_a_builder_that_shares_nothing_is_told_each_pass_by_its_number() -> None:
    engine = Engine(Case("attention", 4, shares=(False,)))
    told: list[int] = []
    made = FakeBuilder.build

    def build(builder: FakeBuilder, batch: Any, *others: Any) -> Any:
        told.append(batch.index)
        return made(builder, batch, *others)

    with patch.object(FakeBuilder, "build", build):
        engine.step()
    assert told == [0, 1, 2, 3]


@dataclass
class Metadata:
    lengths: list[int]
    causal: bool = True

    def __post_init__(self) -> None:
        self.derived = len(self.lengths)


def test_a_copy_is_that_of_python() -> None:
    original = Metadata([1, 2], causal=False)
    original.derived = 7
    found, expected = shallow_copy(original), copy.copy(original)
    assert type(found) is Metadata
    assert vars(found) == vars(expected)
    assert found.lengths is original.lengths
    found.causal = True
    assert original.causal is False
