# SPDX-License-Identifier: Apache-2.0
"""Rows of gated delta nets that are padded to the width of a verification."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

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
