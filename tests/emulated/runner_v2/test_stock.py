# SPDX-License-Identifier: Apache-2.0
"""Model runner V2 of vllm-ascend, without our plugin, gives Hugging Face's tokens here."""

from __future__ import annotations

import pytest

from tests.support import hosts, loop_judgement, stock
from tests.support.pairs import text_prompts
from tests.support.tiny_models import model_directory

hosts.skip_module_unless("vllm_ascend_0_30", "0.23.0 runs model runner V1 instead, with a warning")


# With 16 tokens of an answer they fit into a window of 32, which vllm-ascend makes a key too wide.
WITHIN_A_WINDOW = 14


def short_prompts(target: str) -> list[list[int]]:
    return [prompt[:WITHIN_A_WINDOW] for prompt in text_prompts(model_directory(target))[::4]]


@pytest.mark.nightly("other cases of it stay", cases=["gemma3", "granite4", "lfm2", "qwen3_next"])
@pytest.mark.parametrize("target", ["llama_target", "gemma3", "qwen3_next", "granite4", "lfm2"])
def test_a_target_alone(target: str) -> None:
    """Of one KV group, of two, and with states."""
    stock.run(target, v2=True, **({"prompts": short_prompts(target)} if target == "gemma3" else {}))


@pytest.mark.nightly("near to tests that stay")
@pytest.mark.parametrize("method", ["eagle3", "dflash"])
def test_a_head_of_a_target_in_two_groups(method: str) -> None:
    _, result = stock.run(
        "gpt_oss",
        f"gpt_oss_{method}",
        v2=True,
        speculative={"method": method},
        prompts=short_prompts("gpt_oss"),
    )
    assert 0 < result.num_accepted < result.num_draft_tokens


@pytest.mark.nightly("near to tests that stay")
def test_later_passes_of_a_head_see_rejected_tokens() -> None:
    """Their lengths count rejected tokens, so the first pass alone is right. Tokens stay right."""
    outputs, result = loop_judgement.loops_and_engine(
        "llama_target", "llama_eagle3", "eagle3", 3, environment=stock.STOCK | stock.RUNNER_V2
    )
    assert result.tokens == [output.tokens for output in outputs]
    first, *later = loop_judgement.wrong_tokens(outputs, result, 3)
    assert first == 0
    assert sum(later) > 0
