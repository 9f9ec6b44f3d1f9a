# SPDX-License-Identifier: Apache-2.0
"""Training of tiny models with recurrent states, and how much they notice a token missing in one.

Training is quicker than with Hugging Face's own code: its loop over the 64 tokens of a chunk is one
triangular solve here. Checkpoints are measured and judged with Hugging Face's code all the same.

A token is missing from a state when the layer got a zero input in its place: nothing of it is
written, and nothing of it is in the window of the convolution. That is what a state taken from one
token before is. Who counts letters perfectly notices 0.23 of the letters missing in the decks of
``sensitivity.probe_contexts``: the missing one is then one more letter that may come next. Of a
short convolution only those tokens are taken away that its window holds when the last one comes:
it has forgotten the others.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from tests.support.tiny_models import sensitivity, state_space, training
from tests.support.tiny_models.corpus import Corpus
from tests.support.tiny_models.plain_attention import in_chunks, scanned, unit
from tests.support.tiny_models.recipe import RecurrentRecipe
from tests.support.tiny_models.tokenizer import BOS_TOKEN_ID

REQUIRED_STATE_SHARE = 0.2
"""A model whose share of noticed tokens missing in states is not above this judges no state.

Less than is asked of models with keys only, though 0.23 is perfect for both: those go beyond it
(0.35 to 0.46) because they count worse.
"""

REQUIRED_KEY_SHARE = 0.05
"""A model whose share of noticed keys missing is not above this is no judge of its attention.

Attention is a part of these models, and the states make up for its keys (0.08 to 0.21 are noticed).
Of a part of the others, a single layer, 0.01 is asked.
"""

MIXERS = ("linear_attn", "mamba", "conv")
"""Names that decoder layers have for their recurrent module."""

CHUNK = 32
"""Tokens of one triangular solve in training."""

DECAYS = (1.0, 8.0)
TIME_STEPS = (1e-3, 1e-1)
"""Range of the heads' first decays per time step, and of their first time steps.

As published models begin (Mamba's initial values). Hugging Face's own forget all within two tokens.
"""


@dataclass(frozen=True)
class StateSensitivity:
    """Shares of single missing tokens that change the argmax after a deck, between 0 and 1.

    ``share``: missing in the states of all recurrent layers; ``share_of_keys``: in all attention
    layers; ``share_of_all``: in both, ``share_on_text`` also. ``share_by_layer``: in one recurrent
    layer each, then in one attention layer each.
    """

    share: float
    share_by_layer: list[float]
    share_of_keys: float
    share_of_all: float
    share_on_text: float

    @property
    def suffices(self) -> bool:
        """Whether the model is a judge of states and of keys."""
        return self.share > REQUIRED_STATE_SHARE and self.share_of_keys > REQUIRED_KEY_SHARE


def recurrent_modules(model: Any) -> list[torch.nn.Module]:
    """The modules with states, in order; ValueError where there is none."""
    modules = [
        part
        for name, part in model.named_modules()
        # A short convolution has a part of its own name.
        if name.rpartition(".")[2] in MIXERS and not isinstance(part, torch.nn.Conv1d)
    ]
    if not modules:
        raise ValueError(
            f"{type(model).__name__} has no module named {' or '.join(MIXERS)}; add its name here"
        )
    return modules


def train(recipe: RecurrentRecipe, corpus: Corpus) -> Any:
    """The trained model, in evaluation mode. The caller sets the number of threads."""
    model = training.build_model(recipe)
    modules = recurrent_modules(model)
    for module in modules:
        if hasattr(module, "A_log"):
            let_states_last(module)
    with quickened(modules):
        return training.optimise(model, training.next_token_loss, recipe, corpus)


def let_states_last(module: Any) -> None:
    """Give the heads of ``module`` a spread of decays, some of which remember a long text."""
    with torch.no_grad():
        heads = module.A_log.numel()
        module.A_log.copy_(torch.linspace(*DECAYS, heads).log())
        low, high = torch.tensor(TIME_STEPS).log().tolist()
        steps = torch.linspace(low, high, heads).exp()
        # The inverse of softplus, which the layer takes of it.
        module.dt_bias.copy_(steps + torch.log(-torch.expm1(-steps)))


@contextmanager
def quickened(modules: Sequence[Any]) -> Iterator[None]:
    """Let ``modules`` use ``delta_rule`` or ``state_space.forward`` inside the block."""
    before = []
    for module in modules:
        quick: dict[str, Any] = {}
        if hasattr(module, "chunk_gated_delta_rule"):
            quick = {"chunk_gated_delta_rule": delta_rule}
        elif hasattr(module, "A_log"):
            quick = {"forward": functools.partial(state_space.forward, module)}
        before += [(module, name, getattr(module, name)) for name in quick]
        for name, function in quick.items():
            setattr(module, name, function)
    try:
        yield
    finally:
        for module, name, function in before:
            setattr(module, name, function)


def delta_rule(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """The gated delta rule from a zero state, in chunks (Yang et al., "Gated Delta Networks").

    As transformers' function of that name with normalised queries and keys: all
    ``[rows, tokens, heads, size]``; ``g`` (log of the decay) and ``beta`` without a size.
    """
    length = query.shape[1]
    query, key, value, g, beta = (
        in_chunks(part, CHUNK)
        for part in (unit(query) * query.shape[-1] ** -0.5, unit(key), value, g, beta)
    )
    total = g.cumsum(-1)
    decay = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    weighted = key * beta[..., None]
    lower = (weighted @ key.mT * decay).tril(-1)
    wanted = torch.cat([value * beta[..., None], weighted * total.exp()[..., None]], dim=-1)
    solved = torch.linalg.solve_triangular(lower, wanted, upper=False, unitriangular=True)
    written, forgotten = solved.split([value.shape[-1], key.shape[-1]], dim=-1)
    within = query @ key.mT * decay
    from_state = query * total.exp()[..., None]
    to_state = key * (total[..., -1:] - total).exp()[..., None]
    kept = total[..., -1].exp()[..., None, None]
    return scanned(written, forgotten, from_state, within, kept, to_state)[:, :length], None


def measure_sensitivity(model: Any, texts: Sequence[bytes]) -> StateSensitivity:
    """Measure ``model`` (transformers, eager attention) on decks, and on ``texts`` of 63 bytes."""
    decks = sensitivity.probe_contexts()
    states = recurrent_modules(model)
    attentions = range(len(sensitivity.attention_modules(model)))
    return StateSensitivity(
        share=missing_share(model, decks, states, []),
        share_by_layer=[
            *(missing_share(model, decks, [state], []) for state in states),
            *(missing_share(model, decks, [], [layer]) for layer in attentions),
        ],
        share_of_keys=missing_share(model, decks, [], attentions),
        share_of_all=missing_share(model, decks, states, attentions),
        share_on_text=missing_share(
            model, [[BOS_TOKEN_ID, *text[:63]] for text in texts], states, attentions
        ),
    )


def missing_share(
    model: Any,
    contexts: Sequence[Sequence[int]],
    states: Sequence[torch.nn.Module],
    attentions: Sequence[int],
) -> float:
    """Share of the single tokens, missing in ``states`` and ``attentions``, that are noticed."""
    held = None if attentions else tokens_held(states)
    changed = total = 0
    for context in contexts:
        with tokens_missing(states):
            removed = sensitivity.logits_without_keys(model, context, layers=attentions)
        with torch.inference_mode():
            undisturbed = model(input_ids=torch.tensor([list(context)]), use_cache=False).logits
        choices = removed.argmax(-1)[-held if held else None :]
        changed += int((choices != undisturbed[0, -1].argmax()).sum())
        total += choices.numel()
    return changed / total


def tokens_held(modules: Sequence[torch.nn.Module]) -> int | None:
    """Tokens before the last one that ``modules`` can hold, or None where there is no limit."""
    windows = [getattr(module, "L_cache", None) for module in modules]
    held = [window - 1 for window in windows if isinstance(window, int)]
    return max(held) if len(held) == len(windows) > 0 else None


@contextmanager
def tokens_missing(modules: Sequence[torch.nn.Module]) -> Iterator[None]:
    """Let the input of ``modules`` at position ``i`` of row ``i`` be zero."""

    def forget(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        inputs = named["hidden_states"]
        rows = torch.arange(inputs.shape[0])
        named["hidden_states"] = inputs.index_put((rows, rows), torch.zeros(()))
        return arguments, named

    with ExitStack() as stack:
        for module in modules:
            stack.enter_context(module.register_forward_pre_hook(forget, with_kwargs=True))
        yield
