# SPDX-License-Identifier: Apache-2.0
"""A pool that cannot hold one request is refused, one block too small or more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.models import load_pair
from benchmarks.rows import REQUEST
from mkv_ascend.layout.grouping import (
    AdmissionError,
    Cost,
    Group,
    Grouping,
    blocks_needed,
    longest_request,
    never_held,
    require_one_request,
)
from mkv_ascend.layout.page_planning import plan_pages
from mkv_ascend.layout.requirements import Request, Retention, RetentionKind


@pytest.fixture(scope="module")
def grouping() -> Grouping:
    found = plan_pages(load_pair("gemma-3-27b", "gemma-3-1b").needs(), REQUEST)
    pages = sum(group.pages(REQUEST) for group in found.groups)
    return Grouping(found.groups, Cost(len(found.groups), pages, found.page_bytes))


def test_blocks_that_no_request_holds_are_named() -> None:
    assert never_held(0, "block") == "1 block being vLLM's own"
    assert never_held(2, "page") == (
        "1 page being vLLM's own, 2 asked for beside states but never taken"
    )


def test_blocks_that_must_be_free_are_needed_beside_those_that_are_held() -> None:
    states = Retention(RetentionKind.STATE, 1, extra_blocks=3, asked_blocks=2)
    retentions = (Retention(RetentionKind.ALL), states)
    groups = tuple(
        Group((str(retention.kind),), 128, 4, has_draft=False, retention=retention)
        for retention in retentions
    )
    # Four of 512 tokens, four of states, two that must be free, and vLLM's own.
    assert blocks_needed(groups, Request(512)) == 4 + 4 + 2 + 1


def test_one_block_too_small_is_refused_with_the_numbers(grouping: Grouping) -> None:
    needed = blocks_needed(grouping.groups, REQUEST)
    assert needed == grouping.cost.pages + 1
    require_one_request(grouping, REQUEST, needed)
    with pytest.raises(AdmissionError) as caught:
        require_one_request(grouping, REQUEST, needed - 1)
    message = str(caught.value)
    longest = longest_request(grouping.groups, REQUEST, needed - 1)
    assert f"one request of 32768 tokens needs {needed} pages" in message
    assert f"there are {needed - 1} " in message
    assert f"lower --max-model-len by {32768 - longest} tokens" in message


def test_where_nothing_fits_no_length_is_offered(grouping: Grouping) -> None:
    with pytest.raises(AdmissionError, match="enough for 0 tokens") as caught:
        require_one_request(grouping, REQUEST, 1)
    assert "--max-model-len" not in str(caught.value)


@given(num_blocks=st.integers(0, 300), tokens=st.integers(1, 40000), step=st.integers(1, 9000))
def test_the_longest_request_fits_and_one_token_more_does_not(
    grouping: Grouping, num_blocks: int, tokens: int, step: int
) -> None:
    longest = longest_request(grouping.groups, Request(tokens, step), num_blocks)
    if longest:
        assert blocks_needed(grouping.groups, Request(longest, step)) <= num_blocks
    if longest < tokens:
        assert blocks_needed(grouping.groups, Request(longest + 1, step)) > num_blocks
