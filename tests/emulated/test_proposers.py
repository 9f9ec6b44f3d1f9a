# SPDX-License-Identifier: Apache-2.0
"""The proposers' mixins, over proposers that only say what they were given. No engine."""

from types import SimpleNamespace

import pytest
import torch

from mkv_ascend.drafting.exact_lengths import ExactLengths
from mkv_ascend.drafting.proposers import (
    MkvStep3p5MTPProposer,
    OneMetadata,
    OwnConfiguration,
    create_proposer,
)


class Builder:
    def __init__(self, spec):
        self.kv_cache_spec = f"{spec} of kernel blocks"


class OtherBuilder(Builder):
    pass


def attention_group(layer, spec="spec", builder=Builder):
    backend = type("Backend", (), {})
    return SimpleNamespace(
        layer_names=[layer],
        kv_cache_spec=spec,
        backend=backend,
        get_metadata_builder=lambda: builder(spec),
    )


class StockProposer:
    """Stands for vllm-ascend's proposer, with a runner of two KV groups."""

    runner = SimpleNamespace(kernel_block_sizes=[[128], [64]])

    def __init__(self, groups=(), rejected=None):
        self.groups, self.rejected = groups, rejected

    def initialize_attn_backend(self, kv_cache_config, kernel_block_sizes):
        self.kernel_block_sizes = kernel_block_sizes
        self.draft_attn_groups = list(self.groups)

    def prepare_inputs_padded(self):
        return "metadata", "indices", "to sample", self.rejected


class Joining(OneMetadata, StockProposer):
    pass


def test_groups_that_share_their_metadata_become_one():
    proposer = Joining([attention_group("layers.0"), attention_group("layers.1")])
    proposer.initialize_attn_backend("KV cache configuration", [128])
    (group,) = proposer.draft_attn_groups
    assert group.layer_names == ["layers.0", "layers.1"]


def test_kernel_blocks_are_those_of_the_drafts_own_group():
    """vllm-ascend hands over the sizes of group 0, and counts slots in the manager's blocks."""
    proposer = Joining([attention_group("layers.0")])
    proposer.initialize_attn_backend("KV cache configuration", [128])
    assert proposer.kernel_block_sizes == [128, 64]
    (group,) = proposer.draft_attn_groups
    assert group.kv_cache_spec == "spec of kernel blocks"


@pytest.mark.parametrize(
    "other", [{"spec": "another spec"}, {"builder": OtherBuilder}], ids=["spec", "builder"]
)
def test_groups_with_metadata_of_their_own_are_refused_with_both_layers(other):
    proposer = Joining([attention_group("layers.0"), attention_group("layers.1", **other)])
    with pytest.raises(ValueError, match=r"layers\.0 .* layers\.1 .* different attention metadata"):
        proposer.initialize_attn_backend("KV cache configuration", [128])


def test_a_proposer_that_makes_metadata_for_each_group_keeps_its_groups():
    assert not issubclass(MkvStep3p5MTPProposer, OneMetadata)


def test_counts_of_rejected_tokens_are_int32():
    """Without Triton vllm-ascend sums booleans, which gives int64; the operator reads int32."""

    class Proposer(OwnConfiguration, StockProposer):
        pass

    counts = torch.tensor([True, True]).sum(dim=0, keepdim=True)
    assert counts.dtype == torch.int64
    *_, rejected = Proposer(rejected=counts).prepare_inputs_padded()
    assert rejected.dtype == torch.int32
    assert rejected.tolist() == [2]


class CountingProposer:
    """Adds one to the lengths, as vllm-ascend does for every later step."""

    uses_mrope = False

    def attn_update_stack_num_spec_norm(self, index, old, metadata, batch, padded, positions):
        return SimpleNamespace(
            device=(metadata.seq_lens + 1).tolist(),
            host=(metadata.seq_lens_cpu + 1).tolist(),
        )

    def _propose(self, metadata, positions, steps):
        answers = []
        for index in range(1, steps):
            answers.append(
                self.attn_update_stack_num_spec_norm(index, None, metadata, 2, 3, positions)
            )
            positions = positions + 1
        return answers


class Exact(ExactLengths, CountingProposer):
    pass


def metadata_that_counts_rejected_tokens():
    lengths = torch.tensor([17, 25, 0])  # padded to three requests
    return SimpleNamespace(
        seq_lens=lengths,
        seq_lens_cpu=lengths.clone(),
        _seq_lens_cpu=None,
        num_computed_tokens_cpu=None,
    )


def test_lengths_of_later_steps_are_their_positions_plus_one():
    metadata = metadata_that_counts_rejected_tokens()
    answers = Exact()._propose(metadata, torch.tensor([13, 24]), steps=3)
    # The step after position 13 is at 14 and attends to 15 keys, whatever was rejected before.
    assert [answer.device for answer in answers] == [[15, 26, 1], [16, 27, 1]]
    assert [answer.host for answer in answers] == [[15, 26, 1], [16, 27, 1]]
    assert metadata.seq_lens.tolist() == [17, 25, 0], "the caller's metadata was changed"


def test_lengths_of_dummy_runs_are_left_alone():
    metadata = metadata_that_counts_rejected_tokens()
    answer = Exact().attn_update_stack_num_spec_norm(1, None, metadata, 2, 3, torch.tensor([0, 0]))
    assert answer.device == [18, 26, 1]


def test_a_method_that_nobody_knows_is_refused_by_name():
    with pytest.raises(ValueError, match="telepathy"):
        create_proposer("telepathy", SimpleNamespace(), torch.device("cpu"), None)
