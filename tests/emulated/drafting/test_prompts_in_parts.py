# SPDX-License-Identifier: Apache-2.0
"""A prompt in parts beside a draft is refused, and the engine answers all others."""

import pytest

from tests.emulated.drafting import probes
from tests.support import hosts, programs, reference
from tests.support.pairs import scenario, text_prompts
from tests.support.stock import RUNNER_V2
from tests.support.tiny_models import model_directory

TARGET, MOST_TOKENS = "llama_target", 8
V2 = hosts.only_on("vllm_ascend_0_30", "0.23.0 runs model runner V1 alone")


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.parametrize(
    "runner", [pytest.param({}, id="v1"), pytest.param(RUNNER_V2, id="v2", marks=V2)]
)
def test_it_is_refused_and_others_are_answered(runner):
    whole = text_prompts(model_directory(TARGET), 6)[2:]
    in_parts = [whole[0], whole[1][1:], whole[2][1:]]
    case = scenario(TARGET, TARGET, num_speculative_tokens=3, engine={"async_scheduling": True})
    rounds = [[*whole, in_parts], whole]
    asked = {"engine": case.engine_arguments(), "rounds": rounds, "max_tokens": MOST_TOKENS}
    first, second = programs.answer_of(probes.prompts_in_parts, asked, runner)
    expected = reference.greedy_tokens(model_directory(TARGET), whole, MOST_TOKENS)
    *answers, refusal = first
    assert answers == second == expected
    assert refusal.startswith("VLLMValidationError: the prompt was given in parts")
    assert "Send the whole prompt" in refusal
