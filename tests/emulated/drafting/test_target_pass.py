# SPDX-License-Identifier: Apache-2.0
"""The target's pass without the draft's layers, and builders that run for several groups."""

from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.v1.kv_cache_interface import (
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheGroupSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.worker.utils import AttentionGroup
from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder, AscendMetadata
from vllm_ascend.attention.mla_v1 import AscendMLAMetadataBuilder

from tests.support import hosts

pytestmark = pytest.mark.core

MLA = hosts.module("backends.mla").MLA
SparseMLA = hosts.module("backends.sparse_mla").SparseMLA
_target_pass = hosts.module("target_pass")
Follower = _target_pass.Follower
GatedDeltaNet = hosts.module("backends.gdn").GatedDeltaNet
plan_target_pass = _target_pass.plan_target_pass

BACKEND_OF = hosts.module("drafting.host").HOST.backend_of
SIZES = {"block_size": 4, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float16}
FULL = FullAttentionSpec(**SIZES)
WINDOW = SlidingWindowSpec(sliding_window=8, **SIZES)


class Backend:
    pass


class Builder(AscendAttentionMetadataBuilder):
    """vllm-ascend's builder for all that looks at its class."""

    def __init__(self):
        pass


class OtherBuilder(Builder):
    pass


def group(*layers, spec=FULL, builder=None):
    return AttentionGroup(Backend, list(layers), spec, 0, [builder or Builder()])


class Table:
    """A block table of two requests with ids from ``base`` on, and its slots."""

    is_mamba_group = False
    block_size = 4

    def __init__(self, base):
        self.rows = torch.arange(12, dtype=torch.int32).view(2, 6) + base
        self.slot_mapping = SimpleNamespace(gpu=torch.full((8,), -base, dtype=torch.int32))

    def get_device_tensor(self):
        return self.rows


def configuration(*layers):
    return SimpleNamespace(
        kv_cache_groups=[KVCacheGroupSpec(list(names), FULL) for names in layers]
    )


TABLES = (10, 20, 30, 40)
LENGTHS = torch.tensor([3, 5], dtype=torch.int32)
LAYERS = (["d.1"], ["t.0"], ["t.1", "d.0"], ["t.2"])
GROUPS = (
    [group("d.1")],
    [group("t.0")],
    [group("t.1", spec=WINDOW), group("d.0")],
    [group("t.2", builder=OtherBuilder())],
)


def planned(**options):
    tables = [Table(base) for base in TABLES]
    config = configuration(*LAYERS)
    return (
        plan_target_pass(config, GROUPS, tables, ["d.0", "d.1"], BACKEND_OF, **options),
        tables,
        config,
    )


def shown_layers(plan):
    return [[of.layer_names for of in of_kv_group] for of_kv_group in plan.attention_groups]


def test_builders_run_for_what_differs_by_more_than_its_block_table():
    plan, tables, config = planned()
    assert shown_layers(plan) == [[["t.0"]], [["t.2"]]]
    assert plan.tables == [tables[1], tables[3]]
    assert [(one.leader, one.layers, one.table) for one in plan.followers] == [
        ("t.0", ("t.1",), tables[2])
    ]
    assert plan.layers == ("t.0", "t.1", "t.2")
    names = [of_group.layer_names for of_group in plan.config.kv_cache_groups]
    assert names == [["t.0", "d.0", "d.1"], ["t.2"]]
    assert config.kv_cache_groups[1].layer_names == ["t.0"], "the caller's groups were changed"


def test_nothing_is_shared_where_that_is_not_wanted():
    plan, _, _ = planned(share=False)
    assert shown_layers(plan) == [[["t.0"]], [["t.1"]], [["t.2"]]]
    assert plan.followers == ()


def test_attention_to_other_tokens_is_not_shared():
    spec = CrossAttentionSpec(**SIZES)
    groups = [[group("a", spec=spec)], [group("b", spec=spec)]]
    plan = plan_target_pass(
        configuration(["a"], ["b"]), groups, [Table(10), Table(20)], [], BACKEND_OF
    )
    assert shown_layers(plan) == [[["a"]], [["b"]]]


class MLABuilder(AscendMLAMetadataBuilder):
    def __init__(self):
        pass


def test_groups_of_mla_share_with_those_of_their_spec_alone():
    """Builders of MLA may read any part of their spec, so another spec is another need."""
    kernel = {"num_kv_heads": 1, "head_size": 576, "dtype": torch.bfloat16}
    specs = {
        "a": MLAAttentionSpec(block_size=128, **kernel),
        "b": MLAAttentionSpec(block_size=256, **kernel),
        "c": MLAAttentionSpec(block_size=128, **kernel),
    }
    groups = [[group(name, spec=spec, builder=MLABuilder())] for name, spec in specs.items()]
    tables = [Table(10), Table(20), Table(30)]
    plan = plan_target_pass(configuration(*specs), groups, tables, [], BACKEND_OF)
    assert shown_layers(plan) == [[["a"]], [["b"]]]
    assert [(one.leader, one.layers, one.table) for one in plan.followers] == [
        ("a", ("c",), tables[2])
    ]


def built_for(table, rows):
    return AscendMetadata(block_tables=table.rows[:rows], slot_mapping=table.slot_mapping.gpu[:3])


def test_followers_have_their_own_block_table_and_slots():
    plan, tables, _ = planned()
    leader, other = built_for(tables[1], 2), built_for(tables[3], 2)
    metadata = plan.complete({"t.2": other, "t.0": leader}, 2, LENGTHS)
    assert list(metadata) == ["t.0", "t.1", "t.2"]
    assert metadata["t.0"] is leader
    assert metadata["t.1"].block_tables.tolist() == tables[2].rows.tolist()
    assert metadata["t.1"].slot_mapping.tolist() == [-30] * 3
    assert leader.slot_mapping.tolist() == [-20] * 3, "the leader's metadata was changed"


@pytest.mark.parametrize(("rows", "num_reqs"), [(2, 1), (3, 2)])
def test_requests_of_padding_read_block_0(rows, num_reqs):
    plan, tables, _ = planned()
    leader = AscendMetadata(
        block_tables=torch.zeros((rows, 6)), slot_mapping=tables[1].slot_mapping.gpu[:3]
    )
    followed = plan.complete({"t.0": leader, "t.2": leader}, num_reqs, LENGTHS)["t.1"].block_tables
    assert followed.shape[0] == rows
    assert followed[num_reqs:].eq(0).all()
    assert followed[:num_reqs].ne(0).all()


def test_prefills_of_mla_followers_have_their_rows_of_the_block_table():
    """vllm-ascend's builder leaves the rows of the decodes in ``block_tables``."""
    table = Table(-20)
    built = SimpleNamespace(
        block_tables=table.rows[:1],
        slot_mapping=table.slot_mapping.gpu[:3],
        num_decodes=1,
        decode=SimpleNamespace(block_table=table.rows[:1]),
        prefill=SimpleNamespace(block_table=table.rows[1:2]),
    )
    follower = Follower(MLA(None, None), "leader", ("t",), Table(-30))
    metadata = follower.metadata(built, 2, LENGTHS)
    own = follower.table.rows
    assert metadata.decode.block_table.tolist() == own[:1].tolist()
    assert metadata.prefill.block_table.tolist() == own[1:2].tolist()


def test_sparse_followers_have_their_own_block_table_and_slots():
    """Those of all requests: sparse MLA has one block table for prefills and decodes."""
    table = Table(-20)
    built = SimpleNamespace(block_table=table.rows[:2], slot_mapping=table.slot_mapping.gpu[:3])
    follower = Follower(SparseMLA(None, None), "leader", ("t",), Table(-30))
    metadata = follower.metadata(built, 2, LENGTHS)
    assert metadata.block_table.tolist() == follower.table.rows.tolist()
    assert metadata.slot_mapping.tolist() == [30] * 3
    assert built.slot_mapping.tolist() == [20] * 3, "the leader's metadata was changed"


def test_padding_requests_of_states_read_block_0():
    """Their rows of the block table may hold blocks of an earlier batch."""
    builder = SimpleNamespace(
        kv_cache_spec=None,
        vllm_config=SimpleNamespace(cache_config=SimpleNamespace(mamba_cache_mode="none")),
    )
    built = SimpleNamespace(
        spec_sequence_masks=None,
        non_spec_state_indices_tensor=torch.tensor([1, 2], dtype=torch.int32),
        prefill_state_indices=None,
        spec_state_indices_tensor=None,
        non_spec_prefill_metadata=None,
        non_spec_decode_metadata=None,
        spec_decode_metadata=None,
    )
    table = Table(30)
    gdn = GatedDeltaNet(builder, None)
    followed = Follower(gdn, "leader", ("t",), table).metadata(built, 1, LENGTHS)
    assert followed.non_spec_state_indices_tensor.tolist() == [30, 0]
    assert built.non_spec_state_indices_tensor.tolist() == [1, 2]


@hosts.only_on("vllm_ascend_0_23", "0.30 computes the slots of all groups in one launch")
def test_slots_are_those_of_the_targets_attention_alone(monkeypatch):
    """A group of states has no slots, and those of the draft's own group the draft computes."""
    module = hosts.module("kv_cache.worker_caches")
    given = []
    monkeypatch.setattr(module.TargetSlots, "__init__", lambda self, *args: given.append(args))
    tables = [Table(base) for base in TABLES]
    tables[3].is_mamba_group = True
    every = SimpleNamespace(block_tables=tables, compute_slot_mapping="vllm-ascend's")
    module.slots_in_one_launch(every, GROUPS, ["d.0", "d.1"], 2)
    assert given == [([tables[1], tables[2]], 2)]
    assert every.compute_slot_mapping != "vllm-ascend's"
    alone = SimpleNamespace(block_tables=[tables[3]], compute_slot_mapping="vllm-ascend's")
    module.slots_in_one_launch(alone, [GROUPS[3]], [], 2)
    assert alone.compute_slot_mapping == "vllm-ascend's"


@hosts.only_on("vllm_ascend_0_23", "0.30 computes the slots of all groups in one launch")
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
    slots = hosts.module("kv_cache.worker_caches").TargetSlots(tables, 2)
    slots.compute(2, torch.tensor([0, 2, 3], dtype=torch.int32), torch.tensor([3, 4, 9]))
    for table, base in zip(tables, (10, 20), strict=True):
        expected = [base * 4 + 3, (base + 1) * 4, (base + 2) * 4 + 1]
        assert table.slot_mapping.gpu.tolist() == [*expected, -1, -1, -1, -1, -1]
