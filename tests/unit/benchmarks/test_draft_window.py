# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of a window for the draft asks, and how it counts bytes."""

from __future__ import annotations

from benchmarks import draft_window
from tests.support.tiny_models.corpus import load_corpus


def test_prompts_are_as_long_as_asked_and_end_in_text_that_nobody_trained_on() -> None:
    held_out = b"".join(load_corpus().held_out)
    for tokens in (100, 200_000):
        found = draft_window.prompts(tokens)
        assert [len(prompt) for prompt in found] == [tokens] * draft_window.PROMPTS
        assert len({tuple(prompt) for prompt in found}) == draft_window.PROMPTS
        assert all(bytes(prompt[-90:]) in held_out for prompt in found)
