# SPDX-License-Identifier: Apache-2.0
"""Sampling with seeds, with a draft and without (``tests/support/sampled_pairs.py``)."""

import pytest

from tests.support.sampled_pairs import DRAFT, assert_distributed_as_the_target_says


@pytest.mark.parametrize("draft", [None, DRAFT], ids=["plain", "speculative"])
def test_tokens_are_distributed_as_the_target_says(draft):
    assert_distributed_as_the_target_says(draft)
