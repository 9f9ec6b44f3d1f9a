# SPDX-License-Identifier: Apache-2.0
"""Greedy draft-and-verify in plain loops over Hugging Face models: what an engine must do.

Nothing here keeps a KV cache: each step runs the models on all tokens again. The order of events is
an engine's: the target's first token comes from the prompt alone, then a proposal of ``k`` tokens
is made and verified until enough tokens are there. A proposal always has ``k`` tokens and all of
them are verified and counted, those past the last wanted token too, as vLLM does as long as the
request is that far from ``max_model_len``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tests.support import reference
from tests.support.reference import DraftProposal, GreedyOutput, choice

if TYPE_CHECKING:
    import torch

    from tests.support.tiny_models.heads import Head

TIE = 2e-4
"""Lead of a choice under which an engine in float32 may choose otherwise.

Narrower than ``reference.NEAR_TIE``: a whole decoding is of use only if none of its choices is one.
Logits of two float32 engines differ by some 1e-5 here.
"""

SPECULATION_VERSION = 1
"""Raise when what the cached answers mean changes."""


class Drafter(Protocol):
    """Says what a draft predicts."""

    @property
    def checkpoint(self) -> Path:
        """Folder of the weights."""

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """Logits after the accepted ``context`` and after each token drafted since.

        Token ids; float32 ``[len(drafted) + 1, vocabulary]``.
        """


@dataclass(frozen=True)
class DraftModel:
    """Method ``draft_model``: an independent language model."""

    checkpoint: Path

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """The model's own logits."""
        return reference.logits_of(self.checkpoint, [*context, *drafted])[len(context) - 1 :]


@dataclass(frozen=True)
class DraftHead:
    """Methods ``eagle``, ``eagle3`` and ``mtp``: a head on hidden states of ``target``.

    The target has seen all tokens of the context but the last, which it has just chosen. The head
    is given that much; from there on it goes on from its own states.
    """

    checkpoint: Path
    target: Path

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """The head's logits. ValueError for a context of one token: nothing is known of it."""
        import torch

        if len(context) < 2:
            raise ValueError("a head drafts after the target has seen a token; give two or more")
        head = load_head(self.checkpoint, self.target)
        with torch.inference_mode():
            known = head.known(hidden_states_of(self.target, tuple(context[:-1])))
            return rows_of_head(head, known, context, drafted)


@dataclass(frozen=True)
class DraftBlock:
    """Methods ``dflash`` and ``dspark``: a head that drafts ``k`` tokens at once, from masks.

    What it says of a token follows from how many masks there are; of the tokens drafted before it
    from the last one at most.
    """

    checkpoint: Path
    target: Path
    k: int

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """The head's logits. ValueError for a context of one token: nothing is known of it."""
        import torch

        from tests.support.tiny_models.block_head import propose

        if len(context) < 2:
            raise ValueError("a head drafts after the target has seen a token; give two or more")
        head = load_head(self.checkpoint, self.target)
        with torch.inference_mode():
            known = head.known(hidden_states_of(self.target, tuple(context[:-1])))
            rows = propose(head, known, context[-1], self.k)[0, : len(drafted) + 1]
            before = torch.tensor([context[-1], *drafted])[: rows.shape[0]]
            return head.after(rows, before).float()


@dataclass(frozen=True)
class DraftAssistant:
    """Gemma 4's head of method ``mtp``, whose layers read the keys of ``target``."""

    checkpoint: Path
    target: Path

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """The head's logits. ValueError for a context of one token: nothing is known of it."""
        from tests.support.tiny_models.assistant import rows_of_assistant

        if len(context) < 2:
            raise ValueError("a head drafts after the target has seen a token; give two or more")
        head = load_head(self.checkpoint, self.target)
        return rows_of_assistant(head, context, drafted).float()


def rows_of_head(
    head: Head, known: torch.Tensor, context: Sequence[int], drafted: Sequence[int]
) -> torch.Tensor:
    """``Drafter.rows`` of a head, of what it has ``known`` of all tokens of the context but one."""
    import torch

    rows = []
    for count in range(len(drafted) + 1):
        tokens = torch.tensor([[*context[1:], *drafted[:count]]])
        states, following = head(tokens, known)
        rows.append(head.logits(states[0, -1]).float())
        known = torch.cat([known, following[:, -1:]], dim=1)
    return torch.stack(rows)


def draft(drafter: Drafter, context: Sequence[int], k: int) -> GreedyOutput:
    """The ``k`` tokens that ``drafter`` proposes after ``context``."""
    tokens: list[int] = []
    gaps: list[float] = []
    for _ in range(k):
        token, gap = choice(drafter.rows(context, tokens)[-1])
        tokens.append(token)
        gaps.append(gap)
    return GreedyOutput(tokens, gaps)


@lru_cache(maxsize=4)
def load_head(checkpoint: Path, target: Path) -> Any:
    """The drafting head in ``checkpoint`` on the model in ``target``."""
    from tests.support.tiny_models.derived import load_head as load

    return load(checkpoint, reference.load_model(target))


@lru_cache(maxsize=2)
def hidden_states_of(directory: Path, tokens: tuple[int, ...]) -> Sequence[torch.Tensor]:
    """Hidden states ``[1, len(tokens), width]``: what enters each layer, and the normed output."""
    import torch

    model = reference.load_model(directory)
    with torch.inference_mode():
        output = model(input_ids=torch.tensor([tokens]), use_cache=False, output_hidden_states=True)
    states: Sequence[torch.Tensor] = output.hidden_states
    return states


@dataclass(frozen=True)
class SpeculativeOutput:
    """Result of ``draft_and_verify`` for one prompt.

    Attributes:
        tokens: the generated tokens: the target's own, whatever the draft is.
        proposals: every proposal, with the context it was made after.
        accepted_per_position: how many of them had their token ``i`` accepted.
        smallest_gap: least lead of a choice, the target's or the draft's, over the second best.
            Under ``TIE`` another order of summation may choose, draft and accept otherwise.
    """

    tokens: list[int]
    proposals: list[DraftProposal]
    accepted_per_position: list[int]
    smallest_gap: float

    @property
    def decided(self) -> bool:
        """Whether no choice was a near tie, so that an engine must do exactly the same."""
        return self.smallest_gap >= TIE

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens that one verification yields on average, the target's own token included."""
        if not self.proposals:
            return 0.0
        return 1.0 + sum(self.accepted_per_position) / len(self.proposals)


def draft_and_verify(
    target: Path, drafter: Drafter, prompt: Sequence[int], k: int, max_new_tokens: int
) -> SpeculativeOutput:
    """Greedy speculative decoding of ``max_new_tokens`` tokens after ``prompt`` (token ids).

    Each round the drafter proposes ``k`` tokens; the target takes over the longest prefix that it
    would have chosen itself, and adds one token of its own.
    """
    directories = [target, drafter.checkpoint]
    question = {
        "draft_and_verify": list(prompt),
        "k": k,
        "max_new_tokens": max_new_tokens,
        "version": SPECULATION_VERSION,
        # Of a drafter that is more than its checkpoint.
        **getattr(drafter, "question", {}),
    }

    def compute() -> dict[str, Any]:
        return asdict(speculate(target, drafter, prompt, k, max_new_tokens))

    answer = reference.cached_answer(directories, question, compute)
    proposals = [DraftProposal(**proposal) for proposal in answer.pop("proposals")]
    return SpeculativeOutput(proposals=proposals, **answer)


def speculate(
    target: Path, drafter: Drafter, prompt: Sequence[int], k: int, max_new_tokens: int
) -> SpeculativeOutput:
    """As ``draft_and_verify``, computed anew: for a drafter that is more than its checkpoint."""
    logits = functools.partial(reference.logits_of, target)
    return speculate_by(logits, drafter, prompt, k, max_new_tokens)


def speculate_by(
    logits: Callable[[Sequence[int]], torch.Tensor],
    drafter: Drafter,
    prompt: Sequence[int],
    k: int,
    max_new_tokens: int,
) -> SpeculativeOutput:
    """As ``speculate``, of a target that gives ``logits`` after each of its tokens."""
    first, gap = choice(logits(prompt)[-1])
    tokens, gaps = [*prompt, first], [gap]
    end = len(prompt) + max_new_tokens
    proposals: list[DraftProposal] = []
    accepted = [0] * k
    while len(tokens) < end:
        proposed = draft(drafter, tokens, k)
        proposals.append(DraftProposal(list(tokens), proposed.tokens))
        gaps += proposed.gaps
        rows = logits([*tokens, *proposed.tokens])[len(tokens) - 1 :]
        for position, row in enumerate(rows):
            token, gap = choice(row)
            tokens.append(token)
            gaps.append(gap)
            if position == k or proposed.tokens[position] != token:
                break
            accepted[position] += 1
    return SpeculativeOutput(tokens[len(prompt) : end], proposals, accepted, min(gaps))
