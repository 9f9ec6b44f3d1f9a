# SPDX-License-Identifier: Apache-2.0
"""Trained models with gated delta nets: states across chunks, cached blocks and rejections.

A state that is taken from a token too early or too late changes the tokens of these models (see
``tiny_models.recurrent``). Proposals and acceptance are judged in ``test_drafting_reference``.
"""

from collections.abc import Sequence
from typing import Any

import pytest

from tests.support import engine, hosts, prompts, reference, stock
from tests.support.loop_judgement import REFERENCE_OF, assert_reference
from tests.support.pairs import (
    about_the_end_of_a_block,
    assert_greedy,
    prompts_of,
    run_greedy,
    run_judged,
    scenario,
)
from tests.support.tiny_models import model_directory

BLOCK = 128
"""So many tokens have keys as large as a state."""

K = 3
"""Draft tokens of a proposal."""

NGRAM = {
    "method": "ngram",
    "num_speculative_tokens": 3,
    "prompt_lookup_min": 2,
    "prompt_lookup_max": 4,
}


def mixed_prompts(target: str, *others: str) -> list[list[int]]:
    """Short and long prompts, among them decks, the longest of two blocks and a piece."""
    texts = [
        *(text for text in prompts.text_prompts() if len(text) in (5, 64, 300)),
        *prompts.deck_prompts(2),
        *others,
    ]
    return [reference.token_ids(model_directory(target), text) for text in texts]


def aligned(**fields: Any) -> dict[str, Any]:
    """Arguments of an engine with states kept beside cached blocks.

    A prompt is cut where a block ends, so a step must take a block, and K + 1 tokens of each draft
    besides.
    """
    return {"enable_prefix_caching": True, "max_num_batched_tokens": 192, **fields}


@pytest.mark.host("0.23")
def test_states_across_chunks_rejected_drafts_and_cached_blocks() -> None:
    """Twice: in the second round the long prompts go on from the state at the end of a block."""
    case = scenario(
        "qwen3_next",
        "llama_draft",
        prompts=mixed_prompts("qwen3_next"),
        engine=aligned(max_num_seqs=4),
        max_tokens=24,
        repeats=2,
    )
    result = run_judged(case)
    hits = result.cached_tokens[len(case.prompts) :]
    assert hits == [(len(prompt) - 1) // BLOCK * BLOCK for prompt in case.prompts]
    assert 0 < result.num_accepted < result.num_draft_tokens
    assert result.accepted_per_position[-1] > 0


@pytest.mark.host("0.23", cases=["*-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["*-v2"])
@stock.each_runner
@pytest.mark.parametrize(
    ("target", "draft", "made"),
    [("qwen3_next", "llama_draft", [1, 2, K + 1]), ("granite4", "granite4", [K + 1])],
)
def test_states_that_verifications_keep_at_ends_of_blocks(
    target: str, draft: str, made: Sequence[int], runner: dict[str, str]
) -> None:
    """They end at each place about the end of a block; later prompts go on from what they kept.

    Args:
        made: tokens of the verifications that end exactly there.
    """
    begun = prompts_of(target, [*range(BLOCK - 2 * (K + 1), BLOCK)] * 2)
    directory, more = model_directory(target), 3 * (K + 1)
    follow = reference.greedy_tokens(directory, begun, more)
    case = scenario(
        target,
        draft,
        prompts=begun + [prompt + tokens for prompt, tokens in zip(begun, follow, strict=True)],
        engine=aligned(max_num_seqs=8),
        num_speculative_tokens=K,
        max_tokens=more,
        environment=runner,
    )
    result = run_judged(case)
    steps = [about_the_end_of_a_block(result, prompt, BLOCK) for prompt in begun]
    assert {end - start for start, end in steps if end == BLOCK} == {*made}
    hits = result.cached_tokens[len(begun) :]
    for hit, (start, end) in zip(hits, steps, strict=True):
        # vLLM 0.30.0 keeps no other state that a verification passes by.
        assert hit == BLOCK or BLOCK not in (start + 1, end)


OF_BLOCKS = [
    # vLLM compares without the tokens of drafts, and waits for ever.
    {"max_num_batched_tokens": BLOCK},
    # vLLM 0.23.0 asserts these, and does not say what.
    {"max_num_batched_tokens": 120},
    {"long_prefill_token_threshold": 64},
]


@pytest.mark.parametrize("limits", OF_BLOCKS[:1] if hosts.NAME == "vllm_ascend_0_30" else OF_BLOCKS)
@stock.each_runner
def test_steps_of_less_than_a_block_are_refused(
    limits: dict[str, int], runner: dict[str, str]
) -> None:
    case = scenario("qwen3_next", "llama_draft", engine=aligned(**limits), environment=runner)
    with pytest.raises(engine.EngineFailedError, match=r"at the end of each block of 128 tokens"):
        engine.run(case)


@pytest.mark.host("0.23", cases=["v1-*"])
@pytest.mark.nightly("other cases of it stay", cases=["v2-limits1"])
@hosts.only_on("vllm_ascend_0_30", "0.23.0 refuses them")
@pytest.mark.parametrize("limits", OF_BLOCKS[1:])
@stock.each_runner
def test_steps_of_less_than_a_block(limits: dict[str, int], runner: dict[str, str]) -> None:
    """A state is kept where such a step happens to reach the end of a block."""
    case = scenario(
        "qwen3_next",
        "llama_draft",
        prompts=mixed_prompts("qwen3_next"),
        engine=aligned(**limits),
        max_tokens=16,
        repeats=2,
        environment=runner,
    )
    result = run_judged(case)
    assert max(result.cached_tokens[len(case.prompts) :]) >= BLOCK


def test_states_after_preemption_and_looked_up_drafts() -> None:
    """Rows with all drafts, with fewer and without, and chunks of prompts of K + 1 tokens.

    Blocks are asked for that hold no state: they are enlarged, on 0.30 when the model is built.
    """
    text = prompts.held_out_text(2, 60)
    mixed = [prompt for prompt in mixed_prompts("qwen3_next", text + text[:20]) if len(prompt) < 99]
    case = scenario(
        "qwen3_next",
        prompts=mixed,
        # Long enough for requests to need another block, without which none is preempted.
        max_tokens=72,
        engine={
            "speculative_config": NGRAM,
            "long_prefill_token_threshold": 4,
            "block_size": 64,
        },
        force_preemption=True,
    )
    result = run_greedy(case)
    assert result.preemptions > 0
    assert 0 < result.num_accepted < result.num_draft_tokens


@pytest.mark.host("0.23", cases=["gdn-v1"])
@pytest.mark.nightly("other cases of it stay", cases=["gdn-v2"])
@stock.each_runner
@pytest.mark.parametrize(
    ("target", "draft", "method"),
    [
        pytest.param("qwen3_next_mtp", "qwen3_next_mtp", "mtp", id="gdn"),
        pytest.param(
            "kimi_linear",
            "llama_draft",
            "draft_model",
            id="kda",
            marks=hosts.only_on("vllm_ascend_0_30", "0.23.0 keeps no state of a draft token there"),
        ),
    ],
)
def test_states_where_the_longest_context_ends(
    target: str, draft: str, method: str, runner: dict[str, str]
) -> None:
    """The last step of a request may verify fewer tokens than the step before it accepted."""
    longest, reference_of = 64, REFERENCE_OF.get(target, target)
    case = scenario(
        target,
        draft,
        prompts=prompts_of(reference_of, range(20, 36)),
        speculative={"method": method},
        engine={"max_model_len": longest},
        max_tokens=longest,
        environment=runner,
        record_drafts=True,
    )
    result = engine.run(case)
    for prompt, tokens in zip(case.prompts, result.tokens, strict=True):
        assert_greedy(model_directory(reference_of), [prompt], [tokens], longest - len(prompt))
    ends = {tuple(made.context) for made in result.proposals}
    accepted = [len(end) for end in ends if end[: -(K + 1)] in ends]
    # Behind these all of K + 1 tokens fit no more.
    assert max(accepted) > longest - K


@pytest.mark.host("0.23", cases=["v1"])
@pytest.mark.nightly("other cases of it stay", cases=["v2"])
@stock.each_runner
def test_graphs_of_more_tokens_than_all_requests_verify(runner: dict[str, str]) -> None:
    """A piecewise graph of 12 tokens is captured with one row, which is no verification."""
    result = assert_reference(
        "qwen3_next_mtp",
        "qwen3_next_mtp",
        "mtp",
        K,
        runner,
        engine={"max_num_seqs": 1},
        graphs="FULL_AND_PIECEWISE",
        capture_sizes=(K + 1, 12),
    )
    assert result.draft_replays > 5


@pytest.mark.host("0.23")
def test_qwen3_5_without_its_vision_tower() -> None:
    """Its attention takes an operator of vllm-ascend's that is a Triton kernel in any case."""
    case = scenario(
        "qwen3_5",
        "llama_draft",
        prompts=mixed_prompts("qwen3_5"),
        engine={"language_model_only": True, "max_num_batched_tokens": 96, "max_num_seqs": 4},
        max_tokens=16,
    )
    result = run_judged(case)
    assert 0 < result.num_accepted < result.num_draft_tokens
