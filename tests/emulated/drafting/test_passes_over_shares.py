# SPDX-License-Identifier: Apache-2.0
"""What each pass of sparse layers gets of its own where ranks share sequences."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from tests.support import hosts

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 keeps vllm-ascend's own proposal there")

mla = hosts.module("backends.mla")
sparse_mla = hosts.module("drafting.sparse_mla")

FIRST, LATER, REQUESTS = 5, 4, 2
"""Rows of the first pass and of each later one, of which two are live."""
ROWS = [[0, 1, 2, 3, 4], [5, 6], [9, 10], [13, 14]]
"""Rows of each pass, of which a rank computes those of live requests."""


@pytest.mark.parametrize("index", range(4))
def test_a_pass_has_its_rows_and_slots_of_whole_sequences(index: int) -> None:
    rows = torch.arange(FIRST + 3 * LATER)
    gathered = mla.GatheredRows(rows, -rows, FIRST, LATER, None, ())
    # A builder makes slots from positions, also of a row behind the longest sequence.
    made = SimpleNamespace(
        cos=None, sin=None, slot_mapping=torch.tensor([7, 0, 0]), block_table=torch.tensor([[1]])
    )
    table, slots = made.block_table, made.slot_mapping
    common = SimpleNamespace(num_reqs=REQUESTS, slot_mapping=torch.tensor([7, -1]))
    sparse_mla.complete(made, common, index, gathered)
    assert made.cos.tolist() == ROWS[index]
    assert (-made.sin).tolist() == ROWS[index]
    assert made.slot_mapping.tolist() == [7, -1, 0]
    # The builder's own buffers, which the next pass is made in, stay as they are.
    assert slots.tolist() == [7, 0, 0]
    table.fill_(9)
    assert made.block_table.tolist() == [[1]]
