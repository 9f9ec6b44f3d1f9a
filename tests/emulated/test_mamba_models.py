# SPDX-License-Identifier: Apache-2.0
"""Models with Mamba2 states or windows of short convolutions, alone and verifying drafts."""

import pytest

from mkv_ascend.testing import engine
from tests.emulated.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    scenario,
)

FAMILIES = ["granite4", "lfm2"]
BLOCK = 128
K = 3


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_in_chunks_and_after_prefix_hits(name):
    """Chunks of prompts beside decodes; the second round takes states from cached blocks."""
    limits = {"max_num_batched_tokens": BLOCK, "max_num_seqs": 4, "enable_prefix_caching": True}
    case = scenario(name, engine=limits, repeats=2)
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert max(result.cached_tokens[: len(case.prompts)]) == 0
    assert max(result.cached_tokens[len(case.prompts) :]) >= BLOCK


@pytest.mark.parametrize("name", FAMILIES)
def test_tokens_with_small_chunks_and_preemption(name):
    """Chunks that end within the model's own chunks; requests lose their states and start again."""
    limits = {
        "max_num_batched_tokens": 40,
        "enable_prefix_caching": False,
        "num_gpu_blocks_override": 12,
    }
    case = scenario(name, engine=limits)
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert result.preemptions > 0


@pytest.mark.parametrize("name", FAMILIES)
def test_states_are_taken_back_to_what_was_accepted(name):
    """Drafts are rejected at every position, with states kept at the ends of blocks besides."""
    limits = {"max_num_batched_tokens": 2 * BLOCK, "enable_prefix_caching": True}
    case = scenario(name, "llama_draft", engine=limits, repeats=2, num_speculative_tokens=K)
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert max(result.cached_tokens[len(case.prompts) :]) >= BLOCK
    accepted = result.accepted_per_position
    assert result.num_drafts > accepted[0] > accepted[1] > accepted[2] > 20


def test_steps_without_drafts_start_from_what_was_accepted():
    """ngram finds nothing in many steps, which vllm-ascend then takes for ordinary decodes."""
    method = {
        "method": "ngram",
        "num_speculative_tokens": K,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }
    case = scenario("granite4", engine={"speculative_config": method, "max_num_seqs": 2})
    result = engine.run(case)
    assert_greedy_tokens_of_reference(case, result)
    tokens = sum(map(len, result.tokens))
    assert 0 < result.num_drafts < tokens - result.num_accepted
    assert 10 < result.num_accepted < result.num_draft_tokens
