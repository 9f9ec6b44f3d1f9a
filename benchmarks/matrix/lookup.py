# SPDX-License-Identifier: Apache-2.0
"""Prompt lookup (vLLM's method ``ngram``) in plain loops."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.support import reference
from tests.support.reference import DraftProposal
from tests.support.speculation import SpeculativeOutput

SHORTEST, LONGEST = 2, 4
"""Tokens of the suffix that is looked for, at least and at most."""


def proposed_by_lookup(context: Sequence[int], k: int) -> list[int]:
    """Up to ``k`` tokens that followed the earliest occurrence of the longest known suffix."""
    tokens = list(context)
    for length in range(min(LONGEST, len(tokens) - 1), SHORTEST - 1, -1):
        suffix = tokens[-length:]
        for start in range(len(tokens) - length):
            if tokens[start : start + length] == suffix:
                return tokens[start + length : start + length + k]
    return []


def look_up_and_verify(
    target: Path, prompt: Sequence[int], k: int, max_new_tokens: int
) -> SpeculativeOutput:
    """As ``speculation.draft_and_verify``, with proposals by lookup, of ``k`` tokens or fewer."""
    # Tokens past the last wanted one are verified and counted too.
    output = reference.greedy(target, [list(prompt)], max_new_tokens + k + 1)[0]
    known = [*prompt, *output.tokens]
    end, at = len(prompt) + max_new_tokens, len(prompt) + 1
    proposals: list[DraftProposal] = []
    accepted = [0] * k
    while at < end:
        proposal = DraftProposal(known[:at], proposed_by_lookup(known[:at], k))
        proposals.append(proposal)
        for position, token in enumerate(proposal.tokens):
            if token != known[at]:
                break
            accepted[position] += 1
            at += 1
        at += 1
    tokens = output.tokens[:max_new_tokens]
    return SpeculativeOutput(tokens, proposals, accepted, min(output.gaps))
