# SPDX-License-Identifier: Apache-2.0
"""Metadata of a proposal: what is built, what is copied, and what each copy holds. No engine."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import vllm_ascend.ops  # noqa: F401  before the rest of it: its modules import in a circle
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec
from vllm_ascend.attention.attention_v1 import (
    AscendAttentionMetadataBuilder,
    AscendAttentionState,
    AscendMetadata,
)

from mkv_ascend.drafting.draft import DraftGroup, DraftGroups, PassBatch
from mkv_ascend.drafting.needs import Needs
from mkv_ascend.drafting.plan import DraftPlan, Sizes
from tests.support import hosts

pytestmark = pytest.mark.core

CommonMetadata = hosts.module("backends.port").CommonMetadata
_mla = hosts.module("backends.mla")
GatheredRows = _mla.GatheredRows
SparseMLA = hosts.module("backends.sparse_mla").SparseMLA

HOST = hosts.module("drafting.host").HOST
REQUESTS, STEPS = 2, 3
SIZES = {"block_size": 4, "num_kv_heads": 2, "head_size": 64, "dtype": torch.float16}
WINDOW = SlidingWindowSpec(sliding_window=8, **SIZES)
FULL = FullAttentionSpec(**SIZES)


class DenseBuilder(AscendAttentionMetadataBuilder):
    """vllm-ascend's builder for all that looks at its class; notes what it was given."""

    def __init__(self):
        self.built = []

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        common = common_attn_metadata
        self.built.append(common)
        return AscendMetadata(
            block_tables=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            seq_lens=common._seq_lens_cpu,
            seq_lens_list=common._seq_lens_cpu.tolist(),
        )


class UnknownBuilder:
    """A builder that nothing is known about: its lengths must be right, too, when it runs."""

    def __init__(self):
        self.built = []

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        common = common_attn_metadata
        self.built.append(common)
        return SimpleNamespace(
            block_tables=common.block_table_tensor,
            slot_mapping=common.slot_mapping,
            seq_lens_list=common._seq_lens_cpu.tolist(),
            device_lengths=common.seq_lens.tolist(),
        )

    def build_for_drafting(self, common_attn_metadata, draft_index):
        return self.build(0, common_attn_metadata)


def draft(builders, specs=(WINDOW, FULL, WINDOW), causal=(False, False, False)):
    """A draft of three groups in three KV groups, and its needs."""
    groups = DraftGroups(
        tuple(
            DraftGroup(index, index, type(builder), spec, 4, (f"layers.{index}",), in_order)
            for index, (builder, spec, in_order) in enumerate(
                zip(builders, specs, causal, strict=True)
            )
        ),
        (0, 1, 2),
        (4, 4, 4),
    )
    common = CommonMetadata(AscendAttentionState.ChunkedPrefill)
    return Needs(
        groups,
        [
            HOST.backend_of(builder, group.spec, group=group, common=common)
            for builder, group in zip(builders, groups.groups, strict=True)
        ],
    )


def steps():
    """Later passes of two requests after positions 5 and 9; each table has ids of its own."""
    columns = torch.arange(8, dtype=torch.int32)
    tables = [columns.repeat(REQUESTS, 1) + 100 * group for group in (1, 2, 3)]
    plan = DraftPlan(Sizes(STEPS, REQUESTS, 16, 32), tables, (4, 4, 4))
    plan.next_positions[:REQUESTS] = torch.tensor([5, 9], dtype=torch.int32)
    return plan.plan_later(REQUESTS, REQUESTS)


def batch(planned, index=1):
    """Rows of a pass with one token per request; what the plan has of them is its own."""
    placeholder = torch.ones(REQUESTS, dtype=torch.int32)
    return PassBatch(
        index=index,
        requests=REQUESTS,
        rows=REQUESTS,
        input_rows=REQUESTS,
        rows_across_ranks=None,
        query_start_loc=torch.arange(REQUESTS + 1),
        query_start_loc_host=torch.arange(REQUESTS + 1),
        longest_row=1,
        lengths=placeholder,
        host_lengths=placeholder,
        length_bounds=placeholder,
        positions=placeholder,
        slots=planned.slots[0],
        tables=planned.tables,
        common=SimpleNamespace(attn_state=None, max_query_len=1),
    )


def assert_each_layer_has_its_own(planned, later):
    for step, metadata in enumerate(later):
        assert list(metadata) == ["layers.0", "layers.1", "layers.2"]
        for group, of_layer in enumerate(metadata.values()):
            assert of_layer.slot_mapping.tolist() == planned.slots[step][group].tolist()
            assert of_layer.slot_mapping.tolist() == [
                (100 * (group + 1) + position // 4) * 4 + position % 4
                for position in (6 + step, 10 + step)
            ]
            assert of_layer.block_tables[0, 0] == 100 * (group + 1)
            assert of_layer.seq_lens_list == [7 + step, 11 + step]


def test_one_builder_run_serves_all_groups_and_later_steps():
    builders = [DenseBuilder() for _ in range(3)]
    needs, planned = draft(builders), steps()
    later = needs.later_passes(batch(planned), planned, None).with_lengths(
        planned.all_lengths.clone()
    )
    assert_each_layer_has_its_own(planned, later)
    assert [len(builder.built) for builder in builders] == [1, 0, 0]
    assert needs.builds_per_proposal(STEPS) == 2


def test_the_first_pass_is_built_once_for_all_groups():
    builders = [DenseBuilder() for _ in range(3)]
    needs, planned = draft(builders), steps()
    slots = [torch.full((3,), group) for group in range(3)]
    metadata = needs.first_pass(replace(batch(planned, 0), slots=slots), None)
    assert [of_layer.slot_mapping[0] for of_layer in metadata.values()] == [0, 1, 2]
    assert [of_layer.block_tables[0, 0] for of_layer in metadata.values()] == [100, 200, 300]
    assert [len(builder.built) for builder in builders] == [1, 0, 0]


def test_a_builder_of_which_nothing_is_known_runs_for_each_group_and_step():
    builders = [UnknownBuilder() for _ in range(3)]
    needs, planned = draft(builders), steps()
    metadata = needs.later_passes(batch(planned), planned, None)
    assert [len(builder.built) for builder in builders] == [0, 0, 0], "lengths are not known yet"
    later = metadata.with_lengths(planned.all_lengths.clone())
    assert_each_layer_has_its_own(planned, later)
    assert later[1]["layers.2"].device_lengths == [8, 12]
    computed = [given.num_computed_tokens_cpu.tolist() for given in builders[2].built]
    assert computed == [[6, 10], [7, 11], [8, 12]]
    assert [len(builder.built) for builder in builders] == [STEPS] * 3
    assert needs.builds_per_proposal(STEPS) == 3 * (1 + STEPS)


def test_two_builder_classes_are_two_needs():
    class OtherBuilder(DenseBuilder):
        pass

    builders = [DenseBuilder(), OtherBuilder(), DenseBuilder()]
    needs, planned = draft(builders), steps()
    later = needs.later_passes(batch(planned), planned, None).with_lengths(
        planned.all_lengths.clone()
    )
    assert_each_layer_has_its_own(planned, later)
    assert [need.groups for need in needs.distinct] == [(0, 2), (1,)]
    assert needs.builds_per_proposal(0) == 2


def test_layers_that_see_later_mask_tokens_are_built_apart_from_others():
    builders = [DenseBuilder() for _ in range(3)]
    needs, planned = draft(builders, causal=(True, False, True)), steps()
    block = replace(batch(planned, 0), causal=False)
    block.common.causal = True
    needs.first_pass(block, None)
    told = [[common.causal for common in builder.built] for builder in builders]
    assert told == [[True], [False], []]


def test_metadata_without_a_causal_mask_loses_its_mask():
    class NotCausal(DenseBuilder):
        def build(self, *args):
            metadata = super().build(*args)
            metadata.causal, metadata.attn_mask = False, "mask"
            return metadata

    builders = [NotCausal() for _ in range(3)]
    needs, planned = draft(builders), steps()
    metadata = needs.first_pass(batch(planned, 0), None)
    assert [of_layer.attn_mask for of_layer in metadata.values()] == [None] * 3


def gathered_rows():
    """Of a first pass of 5 rows and of later ones of 4, as other ranks have: 2 are padding."""
    rows = torch.arange(5 + STEPS * 4)
    return GatheredRows(rows, -rows, 5, 4, None, ())


LIVE = [[5, 6], [9, 10], [13, 14]]
"""Rows of the two requests in each later pass."""


def test_later_passes_of_mla_have_the_rows_of_their_live_requests():
    built = SimpleNamespace(decode=SimpleNamespace(cos="the first pass's", sin="", seq_lens=None))
    planned = steps()
    made = _mla.MLA(None, None).for_later_passes(built, planned, gathered_rows())
    assert [each.decode.cos.tolist() for each in made] == LIVE
    assert [(-each.decode.sin).tolist() for each in made] == LIVE
    assert [each.decode.input_positions.tolist() for each in made] == [[6, 10], [7, 11], [8, 12]]
    assert built.decode.cos == "the first pass's", "the template was changed"


def test_later_passes_of_sparse_mla_have_rows_and_lengths_of_their_own():
    built = SimpleNamespace(seq_lens="the first pass's", seq_lens_cpu="", cos="", sin="")
    planned = steps()
    made = (
        hosts.module("backends.sparse_mla")
        .SparseMLA(None, None)
        .for_later_passes(built, planned, gathered_rows())
    )
    assert [each.cos.tolist() for each in made] == LIVE
    assert [(-each.sin).tolist() for each in made] == LIVE
    assert [each.seq_lens.tolist() for each in made] == [[7, 11], [8, 12], [9, 13]]
    assert [each.seq_lens_cpu for each in made] == [None] * STEPS
    assert built.seq_lens == "the first pass's", "the template was changed"
