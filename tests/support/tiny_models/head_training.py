# SPDX-License-Identifier: Apache-2.0
"""Train a drafting head on its target's hidden states and logits."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy

from tests.support.tiny_models.corpus import Corpus
from tests.support.tiny_models.heads import MTP_HEADS, Eagle3Head, EagleHead, Head
from tests.support.tiny_models.recipes import HeadRecipe
from tests.support.tiny_models.training import Progress, optimise

UNROLLED_STEPS = 2
"""Steps of a proposal that are trained on: the second goes on from the head's own states."""

HIDDEN_SHARE = 0.3
"""Share of positions whose hidden state is hidden in training, so that a head needs its own keys.

A hidden state sums up all tokens before it: with all of them a head hardly attends to others.
"""


def build_head(recipe: HeadRecipe, target: Any) -> Head:
    """The head with its initial weights, from ``recipe.seed``."""
    from transformers import LlamaConfig

    torch.manual_seed(recipe.seed)
    if recipe.method == "mtp":
        head: Head = MTP_HEADS[recipe.model_type](target)
    else:
        kind = {"eagle": EagleHead, "eagle3": Eagle3Head}[recipe.method]
        config = LlamaConfig(**recipe.configuration(), attn_implementation="eager")
        head = kind(target, config)
    for parameter in head.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.02)
    return head


def train_head(
    recipe: HeadRecipe, target: Any, corpus: Corpus, progress: Progress | None = None
) -> Head:
    """The trained head, in evaluation mode. The caller sets the number of threads."""
    head: Head = optimise(build_head(recipe, target), proposal_loss, recipe, corpus, progress)
    return head


def proposal_loss(head: Head, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy (nats) of the target's own predictions under the head's.

    ``tokens``: int64 ``[rows, length]``. In the second step what is known of a position is what the
    head said one position earlier, as when it drafts.
    """
    with torch.no_grad():
        output = head.target(input_ids=tokens, use_cache=False, output_hidden_states=True)
    wanted = output.logits[:, 1:].softmax(-1).flatten(0, 1)
    known = head.known([states[:, :-1] for states in output.hidden_states])
    losses = []
    for _ in range(UNROLLED_STEPS):
        kept = torch.rand(known.shape[:2]) >= HIDDEN_SHARE
        states, following = head(tokens[:, 1:], known * kept[..., None])
        losses.append(cross_entropy(head.logits(states).flatten(0, 1), wanted))
        known = torch.cat([known[:, :1], following[:, :-1]], dim=1)
    return torch.stack(losses).mean()
