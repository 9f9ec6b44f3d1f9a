# SPDX-License-Identifier: Apache-2.0
"""What the engine tests share: prompts of real text, and the judgement by Hugging Face."""

from mkv_ascend.testing import engine, prompts, reference
from mkv_ascend.testing.tiny_models import model_directory

MAX_TOKENS = 32


def text_prompts(target, count=None):
    """Token ids of the standard prompts and of decks, whose continuation needs every key."""
    texts = [*prompts.text_prompts(), *prompts.deck_prompts(4)]
    return [reference.token_ids(target, text) for text in texts[:count]]


def scenario(target, draft=None, **fields):
    """A scenario of tiny models by name, with the standard prompts unless others are given."""
    directory = model_directory(target)
    values = {
        "model": str(directory),
        "draft": None if draft is None else str(model_directory(draft)),
        "prompts": text_prompts(directory),
        "max_tokens": MAX_TOKENS,
        "record_drafts": draft is not None,
        **fields,
    }
    return engine.Scenario(**values)


def assert_greedy(model, prompts, completions, max_tokens):
    """Every token is Hugging Face's greedy choice in float32 after the tokens before it.

    Without near ties that is: the completion is Hugging Face's. A model is trained anew on each
    machine, so a tie closer than two engines can be told apart may turn up; one is let pass.
    """
    assert [len(tokens) for tokens in completions] == [max_tokens] * len(prompts)
    pairs = zip(prompts, completions, strict=True)
    report = reference.check_drafts(
        model, [reference.DraftProposal(prompt, tokens) for prompt, tokens in pairs]
    )
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))
    assert len(report.near_ties) <= 1, "\n".join(map(str, report.near_ties))


def assert_greedy_tokens_of_reference(case, result):
    """Every token of every round is Hugging Face's greedy token in float32."""
    prompts = case.prompts * case.repeats
    assert_greedy(case.model, prompts, result.tokens, case.max_tokens)


def assert_drafts_are_the_drafts_own(case, result):
    """Every proposed token is what the draft itself says after the accepted context."""
    assert result.proposals
    report = reference.check_drafts(case.draft, result.proposals)
    assert report.checked == case.num_speculative_tokens * len(result.proposals)
    assert not report.wrong, "\n".join(map(str, report.wrong[:5]))


def backends(result):
    """Role -> set of the backends of its layers."""
    found = {}
    for row in result.layers:
        found.setdefault(row["role"], set()).add(row["backend"])
    return found
