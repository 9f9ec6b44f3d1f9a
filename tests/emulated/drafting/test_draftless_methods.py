# SPDX-License-Identifier: Apache-2.0
"""Methods of speculation without a draft model stay vllm-ascend's: ngram, and suffix decoding."""

import importlib.util

import pytest

from tests.support import engine, prompts, reference
from tests.support.pairs import assert_greedy_tokens_of_reference, scenario
from tests.support.tiny_models import model_directory

pytestmark = pytest.mark.host("0.23")

K, SHORTEST, LONGEST = 3, 2, 4


def looked_up(context):
    """What follows the earliest occurrence of the longest suffix that occurred before."""
    for length in range(LONGEST, SHORTEST - 1, -1):
        suffix = context[-length:]
        for start in range(len(context) - length):
            if context[start : start + length] == suffix:
                return context[start + length : start + length + K]
    return []


def test_ngram_proposes_what_followed_before():
    text = prompts.held_out_text(2, 60)
    texts = [text + text[:20], *prompts.text_prompts()[4:8]]
    case = scenario(
        "gemma3",
        prompts=[reference.token_ids(model_directory("gemma3"), text) for text in texts],
        record_drafts=True,
        engine={
            "speculative_config": {
                "method": "ngram",
                "num_speculative_tokens": K,
                "prompt_lookup_min": SHORTEST,
                "prompt_lookup_max": LONGEST,
            }
        },
    )
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert len(result.proposals) > 20
    for proposal in result.proposals:
        assert proposal.tokens == looked_up(proposal.context)
    assert result.num_accepted > 20
    assert {row["role"] for row in result.layers} == {"target"}


@pytest.mark.skipif(
    importlib.util.find_spec("arctic_inference") is not None,
    reason="arctic-inference is installed, so that nothing is missing",
)
def test_suffix_decoding_says_which_package_it_needs():
    case = scenario(
        "llama_target",
        engine={"speculative_config": {"method": "suffix", "num_speculative_tokens": K}},
    )
    with pytest.raises(engine.EngineFailedError, match=r"pip install arctic-inference==0\.1\.1"):
        engine.run(case)
