# SPDX-License-Identifier: Apache-2.0
"""What a first stage finds out: against a request whose tokens are all known."""

from __future__ import annotations

import random

import pytest

from mkv_ascend.drafting.stages import accepted_since


def test_a_stage_knows_the_tokens_of_any_request() -> None:
    """Each step verifies drafts of which some are right; the next one says what is computed."""
    generator = random.Random(1)
    for _ in range(200):
        tokens = [generator.randrange(50) for _ in range(40)]
        known = tokens[: generator.randrange(1, 8)]
        computed = len(known) - 1
        while computed + 8 < len(tokens):
            # Of later tokens the engine has those up to the first that is not computed.
            known += accepted_since(len(known), computed, tokens[: computed + 1])
            # The stage is sent that one, too.
            known += tokens[len(known) : computed + 1]
            assert known == tokens[: computed + 1]
            computed += 1 + generator.randrange(4)


def test_chunks_of_a_prompt_are_known() -> None:
    assert accepted_since(30, 16, None) == []


@pytest.mark.parametrize(("tokens", "told"), [(None, 0), ([0] * 9, 0), ([0] * 11, 2)])
def test_a_stage_that_is_told_too_little_says_so(tokens: list[int] | None, told: int) -> None:
    words = f"12 tokens of a request are computed and 9 are known .* told {told} of those"
    with pytest.raises(ValueError, match=words):
        accepted_since(9, 12, tokens)
