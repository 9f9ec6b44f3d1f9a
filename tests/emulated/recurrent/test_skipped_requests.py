# SPDX-License-Identifier: Apache-2.0
"""Requests that sit out a step go on from the state after their last accepted token."""

from pathlib import Path

import pytest

from tests.support import programs
from tests.support.pairs import assert_greedy, prompts_of, scenario

PROBE = Path(__file__).with_name("skipped_requests_probe.py")
LENGTHS = (30, 10, 61, 6, 14, 46, 8, 9)


@pytest.mark.host("0.23", cases=["*-False", "qwen3_next-*"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("target", ["granite4", "qwen3_next"])
def test_what_was_accepted_outlives_a_step_without_tokens(target, asynchronous):
    """Without what is kept for such requests the engine gives other tokens."""
    prompts = prompts_of(target, LENGTHS)
    limits = {"async_scheduling": asynchronous, "enable_prefix_caching": False}
    case = scenario(target, "llama_draft", prompts=prompts, engine=limits)
    asked = {"engine": case.engine_arguments(), "prompts": prompts, "max_tokens": case.max_tokens}
    answer = programs.answer_of(PROBE, asked)
    assert max(answer["restored"]) > 1
    assert answer["lost"]["tokens"] != answer["whole"]["tokens"]
    assert_greedy(case.model, prompts, answer["whole"]["tokens"], case.max_tokens)
