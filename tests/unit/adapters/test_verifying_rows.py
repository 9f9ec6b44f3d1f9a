# SPDX-License-Identifier: Apache-2.0
"""Rows of recurrent layers that go on from what a verification of drafts left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mkv_ascend.adapters.common.batch_rows import name_rows, verifying_rows


@pytest.mark.parametrize(
    ("drafts", "accepted", "computed", "found"),
    [
        (2, 1, 9, 2),  # with drafts to verify
        (0, 1, 9, -1),  # with none, now and before
        (0, 2, 9, 0),  # one draft was accepted, and there are none now
        (0, 4, 9, 0),  # three were
        (3, 1, 4, -1),  # the last token of a prompt, with "drafts" behind it
        (0, 3, 4, -1),  # that one, with what another request left in its row
        (2, 1, 5, 2),  # the first step behind a prompt
        (0, 1, 5, -1),  # that one, without drafts
    ],
)
def test_rows_that_go_on_from_another_column_than_the_first(
    drafts: int, accepted: int, computed: int, found: int
) -> None:
    """Behind a prompt of 5 tokens."""
    rows = verifying_rows(*(np.array([each]) for each in (drafts, accepted, computed, 5)))
    assert rows.tolist() == [found]


def runner(drafts: list[int], accepted: list[int]) -> Any:
    """Three rows that are past their prompts, in a batch of up to five."""
    return SimpleNamespace(
        speculative_config=object(),
        model_config=SimpleNamespace(is_hybrid=True),
        num_decode_draft_tokens=SimpleNamespace(np=np.array(drafts)),
        num_accepted_tokens=SimpleNamespace(np=np.array(accepted)),
        input_batch=SimpleNamespace(
            num_computed_tokens_cpu=np.full(5, 9), num_prompt_tokens=np.full(5, 5)
        ),
    )


@pytest.mark.parametrize("least", [0, 1])
def test_rows_that_verified_are_named_beside_those_that_verify(least: int) -> None:
    made = runner([2, -1, -1, -1, -1], [1, 3, 1, 1, 1])
    asked = {"num_reqs": 3, "num_scheduled_tokens": {}, "use_spec_decode": True}
    name_rows(made, asked, least)
    assert made.num_decode_draft_tokens.np.tolist() == [2, least, -1, -1, -1]
    assert asked["use_spec_decode"]


def test_numbers_of_an_earlier_step_are_forgotten() -> None:
    """Then no row has drafts, and the buffer is as it was left."""
    made = runner([2, 2, 2, 2, 2], [1, 1, 1, 1, 1])
    asked = {"num_reqs": 3, "num_scheduled_tokens": {}, "use_spec_decode": False}
    name_rows(made, asked, 1)
    assert made.num_decode_draft_tokens.np.tolist() == [-1] * 5
    assert not asked["use_spec_decode"]
