# SPDX-License-Identifier: Apache-2.0
"""The target's pass without the draft's layers, and builders that run for several groups."""

from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.worker.utils import AttentionGroup
from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder, AscendMetadata

from mkv_ascend.plugin.target_pass import (
    NothingToBuild,
    TargetSlots,
    share_builds,
    visible_config,
    without_layers,
)

SIZES = {"block_size": 4, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float16}
FULL = FullAttentionSpec(**SIZES)
WINDOW = SlidingWindowSpec(sliding_window=8, **SIZES)


class Backend:
    pass


class Builder(AscendAttentionMetadataBuilder):
    """vllm-ascend's builder for all that looks at its class; counts its runs."""

    def __init__(self):
        self.runs = 0

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        self.runs += 1
        common = common_attn_metadata
        return AscendMetadata(
            block_tables=common.block_table_tensor,
            slot_mapping=common.slot_mapping[: common.num_actual_tokens],
            num_actual_tokens=common.num_actual_tokens,
        )


def group(kv_group, *layers, spec=FULL, builder=None):
    return AttentionGroup(Backend, list(layers), spec, kv_group, [builder or Builder()])


def test_layers_and_groups_of_the_draft_go():
    groups = [[group(0, "t.0", "d.0"), group(0, "d.1")], [group(1, "d.2")], []]
    kept = without_layers(groups, {"d.0", "d.1", "d.2"})
    assert [[g.layer_names for g in of_kv_group] for of_kv_group in kept] == [[["t.0"]], [[]], []]
    assert isinstance(kept[1][0].get_metadata_builder(), NothingToBuild)
    assert kept[1][0].get_metadata_builder().build(0, None) is None
    assert groups[0][0].layer_names == ["t.0", "d.0"], "the caller's groups were changed"


def test_the_targets_pass_sees_its_own_kv_groups_and_one_layer_of_the_draft():
    config = SimpleNamespace(
        kv_cache_groups=[
            KVCacheGroupSpec(["t.0"], FULL),
            KVCacheGroupSpec(["t.1", "d.0"], WINDOW),
            KVCacheGroupSpec(["d.1"], FULL),
        ]
    )
    groups = [[group(0, "t.0")], [group(1, "t.1")], [group(2)]]
    visible = visible_config(config, groups, "d.1")
    assert [g.layer_names for g in visible.kv_cache_groups] == [["t.0", "d.1"], ["t.1", "d.0"]]
    assert config.kv_cache_groups[0].layer_names == ["t.0"]


def common(table, tokens=3, query_start_loc=None):
    return SimpleNamespace(
        block_table_tensor=torch.full((2, 4), table),
        slot_mapping=torch.full((8,), 10 * table),
        num_actual_tokens=tokens,
        query_start_loc=query_start_loc,
    )


def shared():
    builders = [Builder(), Builder(), Builder()]
    groups = [
        [group(0, "a", builder=builders[0])],
        [group(1, "b", spec=WINDOW, builder=builders[1]), group(1, "c", builder=builders[2])],
    ]
    return builders, groups


def test_one_builder_runs_for_groups_that_differ_by_block_table():
    builders, groups = shared()
    assert share_builds(groups) == 2
    this_pass = torch.zeros(3)
    built = [
        builder.build(common_prefix_len=0, common_attn_metadata=common(table, 3, this_pass))
        for table, builder in enumerate(builders)
    ]
    assert [builder.runs for builder in builders] == [1, 0, 0]
    assert [metadata.block_tables[0, 0] for metadata in built] == [0, 1, 2]
    assert [metadata.slot_mapping.tolist() for metadata in built] == [[0] * 3, [10] * 3, [20] * 3]


@pytest.mark.parametrize("change", ["pass", "rows"])
def test_what_was_built_for_another_pass_is_not_taken(change):
    builders, groups = shared()
    share_builds(groups)
    first = common(0, query_start_loc=torch.zeros(3))
    builders[0].build(0, first)
    if change == "pass":
        other = common(1, query_start_loc=torch.zeros(3))
    else:
        other = common(1, query_start_loc=first.query_start_loc)
        other.block_table_tensor = torch.ones((5, 4))
    assert builders[1].build(0, other).block_tables is other.block_table_tensor
    assert [builder.runs for builder in builders] == [1, 1, 0]


def test_slots_of_all_groups_in_one_call():
    tables = [
        SimpleNamespace(
            get_device_tensor=lambda base=base: (
                torch.arange(6, dtype=torch.int32).repeat(2, 1) + base
            ),
            slot_mapping=SimpleNamespace(gpu=torch.full((8,), -7, dtype=torch.int32)),
            block_size=4,
        )
        for base in (10, 20)
    ]
    slots = TargetSlots(tables, 2)
    slots.compute(2, torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([3, 4, 9]))
    for table, base in zip(tables, (10, 20), strict=True):
        expected = [base * 4 + 3, (base + 1) * 4, (base + 2) * 4 + 1]
        assert table.slot_mapping.gpu.tolist() == [*expected, -1, -1, -1, -1, -1]
