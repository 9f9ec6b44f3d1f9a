# SPDX-License-Identifier: Apache-2.0
"""Sampling with seeds: tokens are distributed as the target says, with a draft as without.

The distribution is exact: Hugging Face's probabilities of the target after each engine's own
tokens. Wrong acceptance would favour the draft's choice, a wrong draw after a rejection too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from tests.support import engine, prompts, reference
from tests.support.distribution import FALSE_ALARMS, events_p_value, ranks_p_value
from tests.support.pairs import scenario
from tests.support.tiny_models import model_directory

TARGET, DRAFT = "gemma3", "gemma3_draft"
SEEDS_PER_PROMPT = 20
NEW_TOKENS = 12
# Not a whole unit, so that a temperature that is forgotten is noticed.
TEMPERATURE = 0.8


def sampled_tokens(draft: str | None, **fields: Any) -> tuple[list[list[int]], engine.Result]:
    """The prompts, and the engine's result for each of them."""
    directory = model_directory(TARGET)
    texts = [*prompts.text_prompts()[2:5], prompts.deck_prompts(1)[0]]
    each = [reference.token_ids(directory, text) for text in texts]
    case = scenario(
        TARGET,
        draft,
        prompts=[prompt for prompt in each for _ in range(SEEDS_PER_PROMPT)],
        seeds=list(range(len(each) * SEEDS_PER_PROMPT)),
        sampling={"temperature": TEMPERATURE},
        max_tokens=NEW_TOKENS,
        engine={"max_num_seqs": 32},
        record_drafts=False,
        **fields,
    )
    return case.prompts, engine.run(case)


def judged(prompt: list[int], tokens: list[int]) -> Iterable[tuple[torch.Tensor, int, int]]:
    """(target's probabilities, draft's choice, token) of all tokens except the first.

    There is no proposal yet when the first token is sampled.
    """
    context = [*prompt, *tokens[:-1]]
    target, draft = (
        reference.logits_of(model_directory(name), context)[len(prompt) :]
        for name in (TARGET, DRAFT)
    )
    rows = (target / TEMPERATURE).softmax(-1)
    return zip(rows, draft.argmax(-1).tolist(), tokens[1:], strict=True)


def assert_distributed_as_the_target_says(draft: str | None, **fields: Any) -> engine.Result:
    """Sample from many seeds; ``fields``: further ones of the scenario."""
    requests, result = sampled_tokens(draft, **fields)
    rows, drafted, tokens = zip(
        *(
            item
            for prompt, generated in zip(requests, result.tokens, strict=True)
            for item in judged(prompt, generated)
        ),
        strict=True,
    )
    assert ranks_p_value(rows, tokens) > FALSE_ALARMS
    chances = [float(row[choice]) for row, choice in zip(rows, drafted, strict=True)]
    happened = [choice == token for choice, token in zip(drafted, tokens, strict=True)]
    assert events_p_value(chances, happened) > FALSE_ALARMS
    # Each seed draws its own tokens.
    assert len({tuple(generated) for generated in result.tokens}) > 0.5 * len(requests)
    if draft is not None:
        accepted, of = result.num_accepted, result.num_draft_tokens
        print(f"accepted {accepted} of {of} at temperature {TEMPERATURE}")
        # Both ends of a verification must have been seen often.
        assert 0.1 * of < accepted < 0.9 * of
    return result
