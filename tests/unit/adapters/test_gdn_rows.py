# SPDX-License-Identifier: Apache-2.0
"""Rows of gated delta nets that are padded to the width of a verification."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.adapters.common.patches import gdn_rows
from mkv_ascend.adapters.common.patches.gdn_rows import padded_verify_rows


@given(
    rows=st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=6),
    width=st.integers(2, 5),
)
def test_short_rows_repeat_their_last_token(rows: list[tuple[int, bool]], width: int) -> None:
    tokens = [[(row, place) for place in range(length)] for row, (length, _) in enumerate(rows)]
    starts = torch.tensor([0, *np.cumsum([len(row) for row in tokens])], dtype=torch.int32)
    flat = [token for row in tokens for token in row]
    expected = [
        row + row[-1:] * (width - len(row)) if verifying else row
        for row, (_, verifying) in zip(tokens, rows, strict=True)
    ]
    found = padded_verify_rows(starts, torch.tensor([verifying for _, verifying in rows]), width)
    if expected == tokens:
        assert found is None
        return
    assert found is not None
    longer = [flat[index] for index in found.source.tolist()]
    assert longer == [token for row in expected for token in row]
    assert found.starts.diff().tolist() == [len(row) for row in expected]
    assert found.starts.dtype == starts.dtype
    assert [longer[index] for index in found.kept.tolist()] == flat


def test_a_graph_finds_its_rows_again() -> None:
    """A captured graph reads them in each replay: their memory must stay theirs."""
    builder = SimpleNamespace()
    found = []
    for lengths in ([2, 2, 2], [2, 2, 2], [2, 3, 1]):
        starts = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32)
        rows = padded_verify_rows(starts, torch.ones(3, dtype=torch.bool), 4)
        assert rows is not None
        common = SimpleNamespace(query_start_loc=starts, query_start_loc_cpu=starts)
        found.append(gdn_rows._on_device(builder, common, rows))
    assert found[0] is found[1]
    assert found[2] is not found[0]
    assert len(vars(builder)[gdn_rows.UNIFORM]) == 1
