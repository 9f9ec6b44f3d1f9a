# SPDX-License-Identifier: Apache-2.0
"""Which rows model runner V2 names to the builder of gated delta nets."""

from types import SimpleNamespace

import torch

from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")

from mkv_ascend.adapters.vllm_ascend_0_30.v2.patches.recurrent import name_rows  # noqa: E402


def test_rows_that_decode_are_named_with_one_draft_at_least():
    # K drafts, fewer, none; a chunk of a prompt of two tokens; two rows of padding.
    starts = torch.tensor([0, 4, 6, 7, 9, 9, 9], dtype=torch.int32)
    prompts = torch.tensor([False, False, False, True, False, False])
    common = SimpleNamespace(query_start_loc_cpu=starts, is_prefilling=prompts)
    drafts = torch.tensor([3, 1, -1, -1, -1, 3], dtype=torch.int32)
    assert name_rows(common, drafts, 3).tolist() == [3, 1, 1, -1, -1, 3]
    assert drafts.tolist() == [3, 1, -1, -1, -1, 3]


def test_metadata_of_more_rows_is_cut():
    starts = torch.tensor([0, 1, 2, 2], dtype=torch.int32)
    common = SimpleNamespace(query_start_loc_cpu=starts, is_prefilling=torch.zeros(3).bool())
    assert name_rows(common, torch.tensor([-1, 2]), 3).tolist() == [1, 2]


def test_a_row_of_a_dummy_batch_may_be_longer_than_a_verification():
    """A graph of 12 tokens for one request, and one of two rows of 4 and 5 tokens."""
    for starts, named in (([0, 12], [-1]), ([0, 4, 9], [1, -1])):
        rows = len(starts) - 1
        common = SimpleNamespace(
            query_start_loc_cpu=torch.tensor(starts, dtype=torch.int32),
            is_prefilling=torch.zeros(rows).bool(),
        )
        assert name_rows(common, torch.full((rows,), -1), 3).tolist() == named
