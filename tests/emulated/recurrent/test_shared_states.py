# SPDX-License-Identifier: Apache-2.0
"""Metadata of equal groups of gated delta nets is built once, and is what each would build."""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulated import probes
from tests.emulated.drafting import probes as drafting_probes
from tests.support import engine, programs, speculation
from tests.support.loop_judgement import accepted_by_loops
from tests.support.models.random_models import random_model
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy,
    assert_greedy_tokens_of_reference,
    prompts_of,
    scenario,
    text_prompts,
)
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

# Without layers of a draft vLLM gives each layer with states a group of its own here.
PROMPT_LOOKUP = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}


@pytest.mark.host("0.23")
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


# Requests that sit out a step go on from the state after their last accepted token.

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


# Numbers of accepted tokens follow requests whose rows move in the batch.
#
# The next step goes back to the state behind the last accepted token. Whoever gets the number of
# another request goes on from another token's state: wrong tokens, or fewer accepted ones.

K = 3
LENGTHS_OF_ROWS = (30, 10, 61, 6, 14, 46, 8, 9, 118, 21, 3, 12)
TOKENS_OF_ROWS = (4, 40, 7, 60, 11, 5, 30, 18, 19, 25, 6, 33)
"""The row of a request that ends is taken by the last one, or by a new one."""
GREEDY = {"temperature": 0.0, "ignore_eos": True, "detokenize": False}


@pytest.mark.host("0.23", cases=["v1-*"])
@pytest.mark.nightly("other cases of it stay", cases=["v2-*"])
@pytest.mark.parametrize("asynchronous", [False, True], ids=["in-turn", "ahead"])
@each_runner
def test_rows_move_at_the_end_of_each_request(asynchronous, runner):
    """Of unlike lengths, and more than run at once; states are kept at ends of blocks besides."""
    target, head = model_directory("qwen3_next"), model_directory("qwen3_next_mtp")
    drafter = speculation.DraftHead(head, target)
    prompts = prompts_of("qwen3_next", LENGTHS_OF_ROWS)
    outputs = [
        speculation.draft_and_verify(target, drafter, prompt, K, number)
        for prompt, number in zip(prompts, TOKENS_OF_ROWS, strict=True)
    ]
    assert all(output.decided for output in outputs)
    limits = {
        "async_scheduling": asynchronous,
        "enable_prefix_caching": True,
        "max_num_batched_tokens": 192,
        "max_num_seqs": 5,
    }
    case = scenario(
        "qwen3_next_mtp", "qwen3_next_mtp", speculative={"method": "mtp"}, engine=limits
    )
    requests = [
        {"prompt": prompt, "sampling": {**GREEDY, "max_tokens": number}}
        for prompt, number in zip(prompts, TOKENS_OF_ROWS, strict=True)
    ]
    asked = {"engine": case.engine_arguments(), "requests": requests}
    answer = programs.answer_of(drafting_probes.parameters, asked, runner)
    assert [each["tokens"][0] for each in answer["answers"]] == [one.tokens for one in outputs]
    assert answer["accepted"] == accepted_by_loops(outputs)


# Engines with a target that has recurrent states: Qwen3-Next, and drafts of other page sizes.
#
# The target's weights are random, so it accepts almost no token of a trained draft: in every step
# its states go back to the last accepted token.

STATE = "linear_attn"
BLOCK = 256
"""Tokens: vllm-ascend's choice, so that keys are as many bytes as a state."""
DRAFT = "gemma3_draft"
"""A layer with a window and one without, of twice the target's bytes per token."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Blocks that vllm-ascend makes 256 tokens."""
    return random_model(tmp_path_factory.mktemp("aligned"), value_heads=4, kv_heads=1)


@pytest.fixture(scope="module")
def unaligned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A state as large as the keys of one and a half blocks of 128 tokens."""
    return random_model(tmp_path_factory.mktemp("unaligned"), value_heads=6, kv_heads=2)


def case(target: str, **fields: Any) -> engine.Scenario:
    prompts = [[5 + (step * 7) % 250 for step in range(length)] for length in (5, 40, 300, 70)]
    values = {
        "model": target,
        "draft": str(model_directory(DRAFT)),
        "prompts": prompts,
        "max_tokens": 12,
        "record_drafts": True,
        **fields,
    }
    return engine.Scenario(**values)


@pytest.mark.host("0.23")
def test_tokens_and_drafts_are_right_also_after_a_prefix_hit(target: str) -> None:
    """Twice; the second time after a hit of as many blocks as without a draft."""
    scenario = case(target, engine={"enable_prefix_caching": True}, repeats=2)
    result = engine.run(scenario)
    assert max(result.cached_tokens) == BLOCK == 300 // BLOCK * BLOCK
    assert_greedy_tokens_of_reference(scenario, result)
    assert_drafts_are_the_drafts_own(scenario, result)
    states = {row["kv_group"] for row in result.layers if STATE in row["name"]}
    drafted = {row["kv_group"] for row in result.layers if row["role"] == "draft"}
    assert len(drafted) == 2
    assert not states & drafted


@pytest.mark.host("0.23")
def test_states_that_vllm_ascend_cannot_align_are_served(unaligned: str) -> None:
    """It asserts that attention's keys can be made as many bytes as a state."""
    scenario = case(unaligned)
    result = engine.run(scenario)
    assert_greedy_tokens_of_reference(scenario, result)
    assert_drafts_are_the_drafts_own(scenario, result)


@pytest.mark.host("0.23")
@pytest.mark.parametrize("drafted", [False, True], ids=["alone", "with a draft"])
def test_no_block_is_part_of_another_block(target: str, drafted: bool) -> None:
    """One block of one layer is filled and looked for in all others; alone, as stock has them."""
    scenario = case(target) if drafted else case(target, draft=None, record_drafts=False)
    arguments = {**scenario.engine_arguments(), "kv_cache_memory_bytes": 8 << 20}
    result = programs.answer_of(probes.caches, arguments)
    assert result["planned"]
    assert result["aliases"] == []
    assert result["counted_bytes"] <= result["plan_bytes"] <= result["counted_bytes"] + 8192
    if not drafted:
        assert result["caches"] == result["stock_caches"]
