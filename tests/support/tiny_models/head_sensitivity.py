# SPDX-License-Identifier: Apache-2.0
"""How much a drafting head notices that one key is missing from its own attention.

As ``sensitivity`` does for language models, on started decks; but what is compared are the tokens
of a whole proposal. The shares are lower: a hidden state of the target sums up all tokens before
it, so a head needs its own keys less.
"""

from __future__ import annotations

import torch

from tests.support.tiny_models.heads import Head
from tests.support.tiny_models.sensitivity import masked, probe_contexts

REQUIRED_HEAD_SHARE = 0.02
"""A head whose share is not above this is no judge of its cache."""

PROPOSED_TOKENS = 3


def head_removal_share(head: Head) -> float:
    """Share of single-key removals that change one of ``PROPOSED_TOKENS`` proposed tokens."""
    changed = total = 0
    for started in probe_contexts():
        tokens = torch.tensor(started)
        with torch.inference_mode():
            output = head.target(input_ids=tokens[None], use_cache=False, output_hidden_states=True)
            known = head.known(output.hidden_states)
            following = torch.cat([tokens[1:], output.logits[0, -1].argmax(-1, keepdim=True)])
        # The last row is the undisturbed proposal. The key at the last position is not removed:
        # its query would be left without any where it is the only one.
        proposals = proposals_without_keys(head, following, known)
        changed += int((proposals[:-1] != proposals[-1]).any(dim=1).sum())
        total += len(proposals) - 1
    return changed / total


def proposals_without_keys(head: Head, tokens: torch.Tensor, known: torch.Tensor) -> torch.Tensor:
    """Proposals int64 ``[positions, PROPOSED_TOKENS]``; in row ``i`` the key at ``i`` is missing.

    ``tokens``: int64 ``[positions]``, ``known``: ``[1, positions, width]`` as a head takes them.
    The key is hidden from the queries that propose; in the last row none is.
    """
    positions = len(tokens)
    rows = tokens.expand(positions, -1)
    known = known.expand(positions, -1, -1)
    chosen = []
    for _ in range(PROPOSED_TOKENS):
        length = rows.shape[1]
        removal = torch.zeros(positions, 1, length, length)
        for position in range(positions - 1):
            removal[position, 0, positions - 1 :, position] = float("-inf")
        with torch.inference_mode(), masked(head, removal, None):
            states, following = head(rows, known)
            chosen.append(head.logits(states[:, -1]).argmax(-1))
        rows = torch.cat([rows, chosen[-1][:, None]], dim=1)
        known = torch.cat([known, following[:, -1:]], dim=1)
    return torch.stack(chosen, dim=1)
