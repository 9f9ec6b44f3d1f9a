# SPDX-License-Identifier: Apache-2.0
"""What the benchmark of a window for the draft asks, and how it counts bytes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import draft_window
from mkv_ascend.adapters.installed import adapter
from mkv_ascend.checks import from_config
from mkv_ascend.checks.planning_inputs import Asked
from mkv_ascend.layout.planning import plan
from tests.support.tiny_models.corpus import load_corpus

MODEL = Path(__file__).resolve().parents[2] / "data" / "configs" / "Llama-3.1-8B"


def test_prompts_are_as_long_as_asked_and_end_in_text_that_nobody_trained_on() -> None:
    held_out = b"".join(load_corpus().held_out)
    for tokens in (100, 200_000):
        found = draft_window.prompts(tokens)
        assert [len(prompt) for prompt in found] == [tokens] * draft_window.PROMPTS
        assert len({tuple(prompt) for prompt in found}) == draft_window.PROMPTS
        assert all(bytes(prompt[-90:]) in held_out for prompt in found)


@pytest.mark.parametrize(
    ("window", "blocks"),
    [
        (None, 250),
        # 4095 tokens before the first of a step of 4, and a block that the window begins in.
        (4096, 34),
    ],
)
def test_bytes_of_the_draft_are_those_of_its_blocks(window: int | None, blocks: int) -> None:
    asked = {
        "model": str(MODEL),
        "max_model_len": 32000,
        "speculative_config": {"model": str(MODEL), "num_speculative_tokens": 3},
        "additional_config": {"mkv_ascend": {"drafting": {"window": window}}},
    }
    planned = plan(from_config.find(Asked(asked), adapter().RULES).inputs)
    # 32 layers, 8 heads of 128, keys and values of 2 bytes.
    assert draft_window.bytes_of_draft(planned) == blocks * 128 * 32 * 8 * 128 * 2 * 2
