# SPDX-License-Identifier: Apache-2.0
"""Requests drawn from a seed, as they are sent to a server's ``/v1/completions``."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from reliability.scenarios import BLOCK

LETTERS = b"abcdefghijklmnopqrstuvwxyz "
"""What a request with a grammar may answer. The tiny models' tokens are bytes."""
MOST_LETTERS = 1000
"""Of the grammar: more than a request may answer, so that it never ends one."""
LONGEST_ANSWER = 96
"""Tokens that a request asks for, at most."""
NO_NUMBER, INFINITE = float("nan"), float("inf")
HOSTILE: dict[str, dict[str, Any]] = {
    "no temperature": {"temperature": NO_NUMBER},
    "infinite temperature": {"temperature": INFINITE},
    "temperature beyond float32": {"temperature": 1e300},
    "temperature of almost 0": {"temperature": 1e-300, "n": 1},
    "no penalty": {"repetition_penalty": NO_NUMBER},
    "infinite penalty": {"repetition_penalty": INFINITE, "temperature": 1.0},
    "penalty of almost 0": {"repetition_penalty": 1e-300},
    "no share": {"top_p": NO_NUMBER, "temperature": 1.0},
    "no least share": {"min_p": NO_NUMBER, "temperature": 1.0},
    "no bias": {"logit_bias": {"5": NO_NUMBER}},
    "infinite bias": {"logit_bias": {"5": INFINITE}},
    "stop token of no model": {"stop_token_ids": [1 << 20], "min_tokens": 1},
    "negative stop token": {"stop_token_ids": [-1], "min_tokens": 1},
    "allowed token of no model": {"allowed_token_ids": [1 << 20]},
    "more tokens than a row has room for": {"allowed_token_ids": [5] * 2000},
    "more stop tokens than a row has room for": {
        "stop_token_ids": list(range(200)),
        "min_tokens": 1,
    },
    "token without logprobs": {"logprob_token_ids": [1, 2], "logprobs": 1},
    "largest seed": {"seed": (1 << 63) - 1, "temperature": 1.0},
    "smallest seed": {"seed": -(1 << 63), "temperature": 1.0},
}
"""What no batch can hold, or at its ends: such a request may be refused, and reaches no other."""


@dataclass(frozen=True)
class Request:
    """One request. It is greedy, with temperature 0 or from the one likeliest token, or drawn.

    Attributes:
        number: draws it, from a seed.
        prompt: token ids.
        max_tokens: that it asks for, and must get.
        stream: whether tokens come as they are made.
        choices: answers to the prompt, all alike. vLLM takes more than one from samples alone.
        logprobs: whether those of the answer are asked for.
        letters: whether a grammar allows ``LETTERS`` alone.
        priority: smaller ones are served first.
        likeliest: from so many tokens each of the answer is drawn at random; 1: greedy.
        temperature: of these draws.
        seeded: whether they have a seed of their own.
        adapter: the name of one that the server has loaded; none where it is empty.
        hostile: one of ``HOSTILE``, of which no token is judged; none where it is empty.
        abort_after: the client closes the connection after so many tokens, or without a stream
            after so many tenths of a second; None: never.
    """

    number: int
    prompt: tuple[int, ...]
    max_tokens: int
    stream: bool = False
    choices: int = 1
    logprobs: bool = False
    letters: bool = False
    priority: int = 0
    likeliest: int = 1
    temperature: float = 1.0
    seeded: bool = True
    adapter: str = ""
    hostile: str = ""
    abort_after: int | None = None

    def body(self, model: str, with_priority: bool) -> dict[str, Any]:
        """As JSON for the server."""
        found: dict[str, Any] = {
            "model": self.adapter or model,
            "prompt": list(self.prompt),
            "max_tokens": self.max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": self.stream,
        }
        if self.choices > 1 or self.likeliest > 1:
            found |= {"n": self.choices, "temperature": self.temperature, "top_k": self.likeliest}
            if self.seeded:
                found["seed"] = self.number
        if self.logprobs:
            found["logprobs"] = 1
        # With a grammar, one that allows a single token contradicts itself, and fails alone.
        if self.letters and not self.hostile:
            found["structured_outputs"] = {"regex": f"[a-z ]{{{MOST_LETTERS}}}"}
        if with_priority:
            found["priority"] = self.priority
        return found | HOSTILE.get(self.hostile, {})


@lru_cache(maxsize=4)
def text_of(folder: Path) -> tuple[int, ...]:
    """Token ids of the held-out texts and of decks; the first begins every prompt."""
    from tests.support import reference
    from tests.support.prompts import deck_prompts, text_prompts

    return tuple(reference.token_ids(folder, " ".join([*text_prompts(), *deck_prompts(9)] * 2)))


def draw(
    seed: int,
    number: int,
    text: Sequence[int],
    longest: int,
    grammars: bool = True,
    adapters: Sequence[str] = (),
    answer: int = LONGEST_ANSWER,
    hostile: bool = False,
) -> Request:
    """The request of this number.

    Args:
        text: token ids to cut prompts from.
        longest: tokens of a context.
        grammars: whether some ask for one.
        adapters: names of those that the server has; some ask for one.
        answer: tokens of the longest answer.
        hostile: whether some ask for what no batch can hold.
    """
    chance = random.Random(f"{seed} {number}")
    prompt = _prompt(chance, seed, text, longest)
    letters = chance.random() < 0.1 and grammars
    request = Request(
        number=number,
        prompt=prompt,
        max_tokens=min(
            chance.choice((1, 5, answer // 4, answer // 2, answer)), longest - len(prompt)
        ),
        stream=chance.random() < 0.6,
        choices=chance.choice((1, 1, 1, 1, 1, 1, 2, 3)),
        logprobs=chance.random() < 0.2,
        letters=letters,
        priority=chance.choice((0, 0, 0, 1, 5)),
        abort_after=chance.choice((0, 1, 3, 10, 30)) if chance.random() < 0.12 else None,
    )
    if chance.random() < 0.2 and not letters:
        likeliest, temperature = chance.choice((2, 4, 16)), chance.choice((0.7, 1.0))
        seeded = chance.random() < 0.5
        request = replace(request, likeliest=likeliest, temperature=temperature, seeded=seeded)
    request = replace(request, adapter=chance.choice(("", *adapters)))
    if hostile and chance.random() < 0.12:
        request = replace(request, hostile=chance.choice([*HOSTILE]))
    return request


def draw_growing(seed: int, number: int, text: Sequence[int]) -> Request:
    """A request that fills a block of each KV group, and with its answer begins a second one.

    So many of them as a server runs at once find room in a small cache, and none to go on.
    """
    chance = random.Random(f"{seed} {number} growing")
    length = BLOCK - 10
    start = chance.randrange(1, len(text) - length)
    prompt = (text[0], *text[start : start + length - 1])
    return Request(number=number, prompt=prompt, max_tokens=48, stream=chance.random() < 0.6)


def _prompt(chance: random.Random, seed: int, text: Sequence[int], longest: int) -> tuple[int, ...]:
    """Any length; of ten prompts four begin as others do, and two are those of others."""
    kind = chance.random()
    if kind < 0.2:
        # One of twenty that come again and again.
        chance = random.Random(f"{seed} again {chance.randrange(20)}")
    common: Sequence[int] = ()
    if kind < 0.6:
        begins = chance.randrange(1, 4) * 37
        common = text[begins : begins + chance.choice((BLOCK - 1, BLOCK, 2 * BLOCK + 5))]
    length = chance.choice((chance.randint(1, 30), chance.randint(1, 200), chance.randint(1, 384)))
    start = chance.randrange(1, len(text) - length)
    whole = (text[0], *common, *text[start : start + length])
    return whole[: longest - chance.choice((1, 30, 100))]
