# SPDX-License-Identifier: Apache-2.0
"""Drafts against draft-and-verify in plain Hugging Face loops: every proposal and its acceptance.

An engine must do exactly what the loops do: propose the same tokens after the same contexts and
accept as many of them at each position. The prompts have no near ties among their choices: there
another order of summation may rightly choose otherwise.
"""

import pytest

from tests.support import engine, prompts, reference, speculation
from tests.support.loop_pairs import PAIRS
from tests.support.pairs import scenario
from tests.support.tiny_models import model_directory

pytestmark = pytest.mark.skipif(
    engine.compared_dtype() != "float32",
    reason="in 16 bits too many choices are near ties to tell what an engine must do",
)

NUM_PROMPTS, FEWEST_PROMPTS = 8, 5
NEW_TOKENS = 28
# Few blocks and requests at a time, so that blocks are used again soon; prompts in chunks, beside
# requests that decode.
SMALL_ENGINE = {"max_num_seqs": 2, "num_gpu_blocks_override": 20, "max_num_batched_tokens": 64}
# A head keeps a key of the last token of each chunk and of the one after it, which was not sampled
# yet: with short chunks there are so many of them that a wrong one shows.
SHORT_CHUNKS = {"long_prefill_token_threshold": 7}
# Each of the target's two groups of states takes K + 1 blocks for a request.
WITH_STATES = {"max_num_seqs": 2, "num_gpu_blocks_override": 36}


# The MTP checkpoints hold these targets' weights; transformers has no MTP layers.
REFERENCE_OF = {"deepseek_v3_mtp": "deepseek_v2_target", "qwen3_next_mtp": "qwen3_next"}


def candidate_prompts(target):
    """Token ids: texts that fill blocks with keys, then short decks in blocks of those before.

    A step that reads one row too many then reads a true key of another request, not zeros.
    """
    texts = prompts.text_prompts()
    decks = [*prompts.deck_prompts(3), *prompts.deck_prompts(4, letters=6, seed=5)]
    return [reference.token_ids(target, text) for text in [texts[11], texts[8], texts[3], *decks]]


def decided_outputs(target, drafter, k):
    """The candidates whose decoding no near tie decides, and their decoding."""
    decided = []
    for prompt in candidate_prompts(target):
        output = speculation.draft_and_verify(target, drafter, prompt, k, NEW_TOKENS)
        if output.decided:
            decided.append((prompt, output))
    assert len(decided) >= FEWEST_PROMPTS
    return decided[:NUM_PROMPTS]


def drafter_of(target, draft, method, k):
    if method == "draft_model":
        return speculation.DraftModel(model_directory(draft))
    if method == "dflash":
        return speculation.DraftBlock(model_directory(draft), target, k)
    return speculation.DraftHead(model_directory(draft), target)


def in_order(proposals):
    return sorted((proposal.context, proposal.tokens) for proposal in proposals)


@pytest.mark.parametrize(("target", "draft", "method", "k"), PAIRS)
def test_proposals_and_acceptance_are_the_references(target, draft, method, k):
    directory = model_directory(REFERENCE_OF.get(target, target))
    decided = decided_outputs(directory, drafter_of(directory, draft, method, k), k)
    outputs = [output for _, output in decided]
    case = scenario(
        target,
        draft,
        prompts=[prompt for prompt, _ in decided],
        max_tokens=NEW_TOKENS,
        num_speculative_tokens=k,
        speculative={"method": method},
        engine={
            **(WITH_STATES if "qwen3_next" in target else SMALL_ENGINE),
            **(SHORT_CHUNKS if method in ("eagle", "eagle3", "mtp") else {}),
        },
    )
    result = engine.run(case)

    expected = [
        sum(output.accepted_per_position[position] for output in outputs) for position in range(k)
    ]
    of = sum(len(output.proposals) for output in outputs)
    print(f"{target} + {draft}: accepted {expected} per position of {of} proposals")
    assert result.tokens == [output.tokens for output in outputs]
    assert in_order(result.proposals) == in_order(
        proposal for output in outputs for proposal in output.proposals
    )
    assert result.accepted_per_position == expected
    # Neither a hopeless draft nor one that is never rejected would show much. What a draft is worth
    # differs with the processor that trained it: 22 % and more were seen.
    assert 0.15 * of < expected[0]
    assert expected[-1] < of


def test_acceptance_cannot_see_a_wrong_window_but_the_reference_does():
    """With one key too many in every window the model still agrees with itself on everything."""
    directory = model_directory("gemma3")
    case = scenario(
        "gemma3",
        "gemma3",
        prompts=candidate_prompts(directory)[:NUM_PROMPTS],
        max_tokens=NEW_TOKENS,
        mkv_ascend={"attention": {"window_bound": "vllm_ascend"}},
    )
    result = engine.run(case)
    assert result.accepted_per_position == [result.num_drafts] * case.num_speculative_tokens
    assert reference.check_drafts(case.draft, result.proposals).wrong
