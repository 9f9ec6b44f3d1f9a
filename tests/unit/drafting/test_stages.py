# SPDX-License-Identifier: Apache-2.0
"""What a first stage finds out: against a request whose tokens are all known."""

from __future__ import annotations

import random

import pytest

from mkv_ascend.drafting.stages import accepted_since


@pytest.mark.parametrize("told", [True, False], ids=["told all", "from its drafts"])
def test_a_stage_knows_the_tokens_of_any_request(told: bool) -> None:
    """Each step verifies drafts of which some are right; the next one says what is computed."""
    generator = random.Random(1)
    for _ in range(200):
        tokens = [generator.randrange(50) for _ in range(40)]
        known, drafts = tokens[: generator.randrange(1, 8)], list[int]()
        computed = len(known) - 1
        while computed + 8 < len(tokens):
            accepted = accepted_since(len(known), computed, drafts, tokens if told else None)
            # The stage is sent the token at the first position that is not computed.
            known += accepted
            known += tokens[len(known) : computed + 1]
            assert known == tokens[: computed + 1]
            right = generator.randrange(4)
            drafts = [*tokens[computed + 1 : computed + 1 + right], *[99] * (3 - right)]
            computed += 1 + right


def test_chunks_of_a_prompt_are_known() -> None:
    assert accepted_since(30, 16, (), None) == []


def test_a_stage_that_is_told_too_little_says_so() -> None:
    with pytest.raises(ValueError, match="12 tokens of a request are computed and 9 are known"):
        accepted_since(9, 12, [1, 2], None)
    with pytest.raises(ValueError, match="told 0"):
        accepted_since(9, 12, [1, 2, 3], [0] * 9)
