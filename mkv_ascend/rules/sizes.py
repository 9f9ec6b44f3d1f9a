# SPDX-License-Identifier: Apache-2.0
"""Sizes of a model of which nothing can be built, or nothing that answers."""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend.layout.kind import Kind
from mkv_ascend.rules.facts import Facts
from mkv_ascend.rules.model import ModelFacts
from mkv_ascend.rules.refusal import Refusal

HEADS = "num_attention_heads"
OF_ALL_MODELS = ("hidden_size", "num_hidden_layers", "vocab_size", HEADS)
"""What every configuration of transformers has by these names (``PretrainedConfig``), aliases of a
family's own names. Other numbers may be 0: experts, drafting layers, groups."""


def sizes(facts: Facts) -> Iterator[Refusal]:
    """Sizes below 1 that a configuration states.

    vLLM divides by some of them while it builds the models. Of others it builds empty matrices,
    which no operator takes and no weights fit.
    """
    for model in facts.models:
        wrong = [f"{name} {size}" for name, size in _stated(model) if size < 1]
        if wrong:
            yield Refusal(
                "model-size",
                f"the configuration of the {model.role} {model.name} has {', '.join(wrong)}",
                "1 or more of each",
                "correct its config.json, or what --hf-overrides says",
            )


def _stated(model: ModelFacts) -> Iterator[tuple[str, int]]:
    """Sizes of a model; none that it does not state, and no heads where nothing attends."""
    for name in OF_ALL_MODELS:
        size = model.number(name)
        if size is not None and not (name == HEADS and model.attention_free):
            yield name, size
    # Where no heads are stated, vLLM has none of keys, either: they have other names. Of MLA it
    # does not read them.
    heads, is_plain = model.number(HEADS) or 0, model.kind is Kind.FULL_ATTENTION
    if heads > 0 and is_plain and model.key_heads is not None and not model.attention_free:
        yield "num_key_value_heads", model.key_heads


CHECKS = (sizes,)
