# SPDX-License-Identifier: Apache-2.0
"""How much a model notices that one key is missing from its attention.

What is measured: a context of ``n`` tokens is run ``n - 1`` times; in run ``j`` no query after
position ``j`` may attend to the key at ``j``. That is what a cache row that is lost or overwritten
right after it was written does. The *share* is the part of the runs in which the argmax of the
logits after the last token differs from that of the undisturbed run. It is taken over the started
decks of ``probe_contexts`` (see ``batches`` for what a deck is), where all keys matter by design.

The same share on real text is reported next to it and is far lower: most far letters of a text do
not decide the next one. So a test that must notice a corrupt cache uses decks among its prompts,
and a test with text prompts alone sees mainly the loss of recent keys.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch

from tests.support.tiny_models.batches import DECK_LETTERS, deck_line
from tests.support.tiny_models.tokenizer import BOS_TOKEN_ID

REQUIRED_SHARE = 0.3
"""A tiny model whose share on decks is not above this is no judge of a cache."""

REQUIRED_LAYER_SHARE = 0.01
"""Of a single layer: else a fault in the cache of one kind of layer is not seen."""

PROBE_LETTERS = (10, 14, 18, 22, 25)
"""Letters dealt in the probes; there are ``PROBES_PER_LENGTH`` decks for each."""

PROBES_PER_LENGTH = 6
PROBE_SEED = 4242


@dataclass(frozen=True)
class Sensitivity:
    """Shares of single-key removals that change the argmax, each between 0 and 1.

    ``share``: decks, key removed from all layers, for all later queries (the figure that is kept
    over ``REQUIRED_SHARE``). ``share_by_layer``: decks, removed from that layer only.
    ``share_last_query``: decks, all layers, hidden from the last query only, as if the row had been
    overwritten just before the last step. ``share_on_text``: as ``share``, on 64 tokens of text.
    ``removals``: number of removals behind ``share``.
    """

    share: float
    share_by_layer: list[float]
    share_last_query: float
    share_on_text: float
    removals: int

    def suffices(self, required: float) -> bool:
        """Whether the model is a judge of its cache, and no layer of it is blind."""
        return self.share > required and min(self.share_by_layer) > REQUIRED_LAYER_SHARE


def probe_contexts() -> list[list[int]]:
    """Started decks as token ids, ``<bos>`` first; the same on every call."""
    generator = random.Random(PROBE_SEED)
    return [
        [BOS_TOKEN_ID, *deck_line(generator)[: 1 + letters]]
        for letters in PROBE_LETTERS
        for _ in range(PROBES_PER_LENGTH)
    ]


def faultless_share() -> float:
    """Expected share of a model that deals decks without a fault: 0.209.

    After ``n`` letters it thinks those left that it did not see, each as likely: ``26 - n``, and
    the one whose key is missing. That one comes first by chance alone, once in ``27 - n`` times.
    The marks before the letters tell nothing, and the last letter's key is never removed.
    """
    deals = len(DECK_LETTERS)
    noticed = sum(
        (Fraction(letters - 1, deals + 1 - letters) for letters in PROBE_LETTERS), Fraction()
    )
    return float(noticed / sum(letters + 1 for letters in PROBE_LETTERS))


def measure_sensitivity(model: Any, texts: Sequence[bytes]) -> Sensitivity:
    """Measure ``model`` (transformers, eager attention); ``texts`` are pieces of 63 bytes or more.

    Raises ValueError when the model has no decoder layers with a ``self_attn`` module.
    """
    decks = probe_contexts()
    layers = range(len(attention_modules(model)))
    text_contexts = [[BOS_TOKEN_ID, *text[:63]] for text in texts]
    return Sensitivity(
        share=removal_share(model, decks),
        share_by_layer=[removal_share(model, decks, layers=[layer]) for layer in layers],
        share_last_query=removal_share(model, decks, last_query_only=True),
        share_on_text=removal_share(model, text_contexts),
        removals=sum(len(context) - 1 for context in decks),
    )


def removal_share(
    model: Any,
    contexts: Sequence[Sequence[int]],
    *,
    layers: Sequence[int] | None = None,
    last_query_only: bool = False,
) -> float:
    """Share of single-key removals over all ``contexts`` that change the final argmax."""
    changed = total = 0
    for context in contexts:
        removed = logits_without_keys(
            model, context, layers=layers, last_query_only=last_query_only
        ).argmax(-1)
        with torch.inference_mode():
            undisturbed = model(input_ids=torch.tensor([list(context)]), use_cache=False).logits
        changed += int((removed != undisturbed[0, -1].argmax()).sum())
        total += removed.numel()
    return changed / total


def logits_without_keys(
    model: Any,
    context: Sequence[int],
    *,
    layers: Sequence[int] | None = None,
    last_query_only: bool = False,
) -> torch.Tensor:
    """Final logits of each removal, float32 ``[len(context) - 1, vocabulary]``, row = position."""
    length = len(context)
    removal = torch.zeros(length - 1, 1, length, length)
    for position in range(length - 1):
        first_query = length - 1 if last_query_only else position + 1
        removal[position, 0, first_query:, position] = float("-inf")
    rows = torch.tensor([list(context)]).expand(length - 1, -1)
    with torch.inference_mode(), masked(model, removal, layers):
        return model(input_ids=rows, use_cache=False).logits[:, -1].float()


def attention_modules(model: Any) -> list[torch.nn.Module]:
    """The attention module of each decoder layer, in order."""
    modules = [module for name, module in model.named_modules() if name.endswith(".self_attn")]
    if not modules:
        raise ValueError(f"{type(model).__name__} has no module named self_attn; add its name here")
    return modules


@contextmanager
def masked(model: Any, removal: torch.Tensor, layers: Sequence[int] | None) -> Iterator[None]:
    """Add ``removal`` (``[rows, 1, queries, keys]``) to the mask of ``layers``, of all if None."""

    def add(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        # Eager attention always gets an additive mask; a missing one would be silently no removal.
        keywords["attention_mask"] = keywords["attention_mask"] + removal
        return arguments, keywords

    modules = attention_modules(model)
    chosen = modules if layers is None else [modules[layer] for layer in layers]
    with ExitStack() as stack:
        for module in chosen:
            stack.enter_context(module.register_forward_pre_hook(add, with_kwargs=True))
        yield
