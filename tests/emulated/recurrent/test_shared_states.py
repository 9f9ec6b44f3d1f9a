# SPDX-License-Identifier: Apache-2.0
"""Metadata of equal groups of gated delta nets is built once, and is what each would build."""

import pytest

from tests.emulated import probes
from tests.support import programs
from tests.support.pairs import scenario, text_prompts

pytestmark = pytest.mark.host("0.23")

# Without layers of a draft vLLM gives each layer with states a group of its own here.
PROMPT_LOOKUP = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_equal_groups_of_a_target_build_once(prefix_caching):
    """Prefills, verified drafts and both in one batch; with tables in full and in aligned form."""
    case = scenario("qwen3_next")
    request = {
        "engine": {
            **case.engine_arguments(),
            "speculative_config": PROMPT_LOOKUP,
            "enable_prefix_caching": prefix_caching,
            "max_num_batched_tokens": 128,
            "max_num_seqs": 3,
        },
        "prompts": [prompt[:60] * 2 for prompt in text_prompts(case.model, 4)],
        # Enough for a batch in which every request verifies what was looked up.
        "max_tokens": 24,
    }
    seen = programs.answer_of(probes.shared_states, request)
    states = [names for names in seen["groups"] if "linear_attn" in names[0]]
    assert len(states) > 1
    assert seen["builds"] == seen["passes"]
    assert sum(seen["made"].values()) == (len(states) - 1) * seen["passes"]
    assert {"prefills", "spec_decodes", "prefills+spec_decodes"} <= set(seen["made"])
    assert seen["wrong"] == []
