# SPDX-License-Identifier: Apache-2.0
"""Rows of recurrent layers that go on from what a verification of drafts left."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support import hosts

hosts.skip_module_unless(
    "vllm_ascend_0_23", "0.30.0rc2 has another builder of these rows, which is not patched"
)
_gdn_rows = hosts.module("patches.gdn_rows")
padded_verify_rows = _gdn_rows.padded_verify_rows
verifying_rows = _gdn_rows.verifying_rows


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


def test_rows_that_go_on_from_another_column_than_the_first() -> None:
    """Drafts; accepted drafts and none now; neither; a prompt whose chunk has "drafts"; its end."""
    found = verifying_rows(
        drafts=np.array([2, 0, 0, 3, 0]),
        accepted=np.array([1, 3, 1, 1, 1]),
        computed=np.array([9, 9, 9, 4, 5]),
        prompts=np.array([5, 5, 5, 5, 5]),
    )
    assert found.tolist() == [2, 0, -1, -1, -1]
