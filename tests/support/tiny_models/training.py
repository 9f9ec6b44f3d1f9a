# SPDX-License-Identifier: Apache-2.0
"""Train one tiny model on the CPU with the model classes of Hugging Face transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from tests.support.tiny_models.batches import batches
from tests.support.tiny_models.corpus import Corpus
from tests.support.tiny_models.optimizer import OrthogonalMomentum
from tests.support.tiny_models.recipes import Recipe

WARM_UP_STEPS = 20
DECK_WEIGHT = 0.5
"""Weight of the loss on decks; that on text has weight 1."""


def build_model(recipe: Recipe) -> Any:
    """The model with its initial weights in float32, from ``recipe.seed``."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(recipe.seed)
    config = AutoConfig.for_model(recipe.model_type, **recipe.configuration())
    return AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    )


def train(recipe: Recipe, corpus: Corpus) -> Any:
    """The trained model, in evaluation mode. The caller sets the number of threads."""
    return optimise(build_model(recipe), next_token_loss, recipe, corpus)


def optimise(
    model: Any,
    loss_of: Callable[[Any, torch.Tensor], torch.Tensor],
    recipe: Any,
    corpus: Corpus,
) -> Any:
    """``model`` after the steps of ``recipe``, in evaluation mode.

    ``loss_of(model, tokens)``: a scalar, for tokens int64 ``[rows, length]``. ``recipe``: a
    ``Recipe``, or another with its fields of training.
    """
    model.train()
    optimizers = build_optimizers(model, recipe)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, recipe.steps))
        for optimizer in optimizers
    ]
    data = batches(
        corpus.training,
        seed=recipe.seed,
        steps=recipe.steps,
        text_tokens=recipe.text_tokens,
        decks=recipe.decks,
    )
    for text, decks in data:
        text_loss = loss_of(model, text)
        model.zero_grad()
        (text_loss + DECK_WEIGHT * loss_of(model, decks)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
    return rounded(model).eval()


def rounded(model: Any) -> Any:
    """``model`` with each weight rounded to 6 significant bits, of which it is kept; see ``store``.

    bfloat16 has 8: what is left out takes no bytes of a file, and moves no weight by over 1 %.
    """
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.dtype == torch.float32:
                value.copy_(in_few_bits(value))
    return model


def in_few_bits(values: torch.Tensor) -> torch.Tensor:
    """float32 rounded to 6 significant bits, of 24."""
    bits = values.contiguous().view(torch.int32)
    return ((bits + (1 << 17)) & -(1 << 18)).view(torch.float32)


def next_token_loss(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    """Mean cross entropy (nats) of each token of int64 ``[rows, length]`` given those before it."""
    logits = model(input_ids=tokens, use_cache=False).logits
    return cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def rate_factor(step: int, steps: int) -> float:
    """Share of the learning rate in ``step``: a short linear warm-up, then linear to near zero."""
    return min(1.0, (step + 1) / WARM_UP_STEPS) * max(0.02, 1 - step / steps)


def build_optimizers(model: Any, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """OrthogonalMomentum for the matrices between embedding and head, AdamW for the rest.

    A router's matrix counts as the rest: its rows are scores of experts, not directions of one map.
    """
    matrices: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, parameter in model.named_parameters():
        outer = any(word in name for word in ("embed_tokens", "lm_head", "gate.weight", "router"))
        stack_of_biases = name.endswith("bias")
        is_matrix = parameter.dim() >= 2 and not outer and not stack_of_biases
        (matrices if is_matrix else others).append(parameter)
    return [
        OrthogonalMomentum(matrices, recipe.learning_rate),
        torch.optim.AdamW(
            others, lr=recipe.vector_learning_rate, betas=(0.9, 0.95), weight_decay=0.01
        ),
    ]
