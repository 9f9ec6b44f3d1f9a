# SPDX-License-Identifier: Apache-2.0
"""Requests that sit out a step go on from the state after their last accepted token."""

import pytest

from tests.emulated import probes
from tests.support import programs
from tests.support.pairs import assert_greedy, prompts_of, scenario

LENGTHS = (118, 10, 61, 6, 14, 46, 9, 30)
TOKENS = (32, 5, 60, 8, 25, 40, 12, 48)
"""Rows move when a request ends. The first one comes into another block meanwhile."""


@pytest.mark.host("0.23", cases=["*-False", "qwen3_next-*"])
@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(
    ("target", "caching"), [("granite4", False), ("qwen3_next", False), ("qwen3_next", True)]
)
def test_what_was_accepted_outlives_a_step_without_tokens(target, caching, asynchronous):
    """Without what is kept for such requests the engine gives other tokens.

    Rows move, and one request is preempted.
    """
    prompts = prompts_of(target, LENGTHS)
    limits = {
        "async_scheduling": asynchronous,
        "enable_prefix_caching": caching,
        "max_num_batched_tokens": 192,
    }
    case = scenario(target, "llama_draft", prompts=prompts, engine=limits)
    asked = {"engine": case.engine_arguments(), "prompts": prompts, "max_tokens": TOKENS}
    answer = programs.answer_of(probes.skipped_requests, asked)
    assert max(answer["restored"]) > 1
    assert answer["preempted"] == 1
    assert answer["lost"]["tokens"] != answer["whole"]["tokens"]
    for prompt, tokens, number in zip(prompts, answer["whole"]["tokens"], TOKENS, strict=True):
        assert_greedy(case.model, [prompt], [tokens], number)
