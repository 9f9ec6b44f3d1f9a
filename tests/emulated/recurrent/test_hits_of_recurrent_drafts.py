# SPDX-License-Identifier: Apache-2.0
"""Prefix hits beside a draft with recurrent layers: the target's, as without the draft.

The draft has no state at the end of a hit and reads its tokens itself. If it did not, or read one
token less, the output tokens would be the same. So every draft token is compared with what Hugging
Face's run of the draft says after the accepted context.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.emulated.drafting import probes
from tests.support import engine, programs
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy,
    assert_greedy_tokens_of_reference,
    scenario,
    text_prompts,
)
from tests.support.stock import each_runner
from tests.support.tiny_models import model_directory

BLOCK = 128
STEM = 2 * BLOCK + 40
"""Tokens that three prompts share."""
K = 3


def case(target: str, draft: str | None, **fields: Any) -> engine.Scenario:
    """Prompts that begin alike, one of them with nothing behind, and one that does not."""
    long = [token for prompt in text_prompts(model_directory(target)) for token in prompt]
    stem = long[:STEM]
    prompts = [
        stem + long[300:305],
        stem + long[320:360],
        stem[: 2 * BLOCK] + long[370:371],
        long[10:20],
        long[BLOCK : 2 * BLOCK + 9],
    ]
    values = {"prompts": prompts, "max_tokens": 12, "repeats": 2, "num_speculative_tokens": K}
    return scenario(target, draft, **{**values, **fields})


def assert_right(drafted: engine.Scenario, result: engine.Result) -> None:
    assert_greedy_tokens_of_reference(drafted, result)
    assert_drafts_are_the_drafts_own(drafted, result)
    assert 0 < result.num_accepted < result.num_draft_tokens


@pytest.mark.host("0.23", cases=["*-fields2-v1"])
@pytest.mark.host("0.30", cases=["*-fields1-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-v2", "qwen3_moe-*"])
@each_runner
@pytest.mark.parametrize(
    ("target", "draft", "fields"),
    [
        # Three prompts begin alike. Two hit the blocks that the first one fills in that very step;
        # the draft then reads 512 tokens in one pass.
        ("qwen3_moe", "qwen3_next_draft", {}),
        # A hit is read in several passes, beside chunks of other prompts. One pass ends in the
        # middle of a request, and one has a single token. In between, drafts come from graphs.
        (
            "llama_target",
            "lfm2",
            {
                "engine": {"max_num_batched_tokens": 85},
                "graphs": "FULL_DECODE_ONLY",
                "capture_sizes": (4, 8, 16),
            },
        ),
        # Windows of the target, in blocks of their own.
        ("gemma3", "granite4", {"engine": {"max_num_batched_tokens": 300}}),
    ],
)
def test_hits_are_those_without_the_draft(
    target: str, draft: str, fields: dict[str, Any], runner: dict[str, str]
) -> None:
    fields = {"environment": runner, **fields}
    drafted = case(target, draft, **fields)
    result = engine.run(drafted)
    assert_right(drafted, result)
    second = result.cached_tokens[len(drafted.prompts) :]
    assert second == [2 * BLOCK, 2 * BLOCK, 2 * BLOCK, 0, BLOCK]
    alone = engine.run(case(target, None, **fields))
    assert alone.cached_tokens[len(drafted.prompts) :] == second
    if fields.get("graphs"):
        assert result.draft_replays > 0
    # What was accepted, too, is what a draft accepts that has seen every token.
    without = engine.run(
        case(target, draft, **{**fields, "engine": {"enable_prefix_caching": False}})
    )
    assert max(without.cached_tokens) == 0
    assert result.accepted_per_position == without.accepted_per_position


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_a_resumed_request_finds_its_own_blocks(runner: dict[str, str]) -> None:
    """Preempted in the middle of its text: what it generated is part of the hit."""
    resumed = case(
        "llama_target",
        "lfm2",
        max_tokens=150,
        force_preemption=True,
        repeats=1,
        environment=runner,
    )
    result = engine.run(resumed)
    assert_right(resumed, result)
    assert result.preemptions > 0


@pytest.mark.host("0.23")
def test_ranks_read_hits_together() -> None:
    spread = case("qwen3_moe", "qwen3_next_draft", engine={"tensor_parallel_size": 2})
    result = engine.run(spread)
    assert_right(spread, result)
    assert max(result.cached_tokens) == 2 * BLOCK


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@each_runner
def test_asynchronous_scheduling_accepts_as_much(runner: dict[str, str]) -> None:
    """Steps are scheduled before it is known what was accepted."""
    counts = []
    for caching in (True, False):
        limits = {"async_scheduling": True, "enable_prefix_caching": caching}
        ahead = case(
            "qwen3_moe", "qwen3_next_draft", record_drafts=False, engine=limits, environment=runner
        )
        result = engine.run(ahead)
        assert_greedy_tokens_of_reference(ahead, result)
        assert max(result.cached_tokens) == (2 * BLOCK if caching else 0)
        counts.append(result.accepted_per_position)
    assert counts[0] == counts[1]


@pytest.mark.core
@pytest.mark.host("0.23", cases=["*-granite4-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-granite4-v2", "*-qwen3_next_draft-v1"])
@each_runner
@pytest.mark.parametrize(
    ("target", "draft"), [("granite4", "granite4"), ("qwen3_next", "qwen3_next_draft")]
)
def test_states_of_the_target_are_hit_and_those_of_the_draft_rebuilt(
    target: str, draft: str, runner: dict[str, str]
) -> None:
    """The target keeps its own at the ends of blocks, which is asked for, not vLLM's default."""
    asked = {"enable_prefix_caching": True, "max_num_batched_tokens": 300}
    both = case(target, draft, engine=asked, environment=runner)
    result = engine.run(both)
    assert_greedy_tokens_of_reference(both, result)
    assert_drafts_are_the_drafts_own(both, result)
    alone = engine.run(case(target, None, engine=asked, environment=runner))
    second = slice(len(both.prompts), None)
    assert result.cached_tokens[second] == alone.cached_tokens[second]
    assert max(result.cached_tokens[second]) >= BLOCK
    if draft == target:
        # vLLM may also count placeholders, of a request that begins with one token.
        assert result.num_accepted == K * len(result.proposals)


@pytest.mark.host("0.23")
def test_aborted_requests_leave_the_others_as_they_were() -> None:
    """Before the draft has read their hit to the end, and after; a model accepts all of its own."""
    own = case("lfm2", "lfm2", record_drafts=False, max_tokens=10)
    prompts = own.prompts * 2
    aborts = {3: [0, 1], 6: [5], 8: [7]}
    limits = {
        "async_scheduling": False,
        "enable_prefix_caching": True,
        "max_num_seqs": 3,
        "max_num_batched_tokens": 150,
    }
    request = {
        "engine": {**own.engine_arguments(), **limits},
        "prompts": prompts,
        "max_tokens": own.max_tokens,
        "aborts": aborts,
    }
    result = programs.answer_of(probes.abort, request)
    gone = {number for numbers in aborts.values() for number in numbers}
    kept = [number for number in range(len(prompts)) if number not in gone]
    assert sorted(map(int, result["tokens"])) == kept
    tokens = [result["tokens"][str(number)] for number in kept]
    assert_greedy(own.model, [prompts[number] for number in kept], tokens, own.max_tokens)
    assert result["accepted"] == [result["drafts"]] * own.num_speculative_tokens
    assert max(result["cached"].values()) == 2 * BLOCK
