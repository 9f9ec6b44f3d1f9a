# SPDX-License-Identifier: Apache-2.0
"""What a recipe of a tiny model says; the recipes themselves are in ``recipes``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.support.tiny_models.tokenizer import (
    BOS_TOKEN_ID,
    EOS_TOKEN_ID,
    PAD_TOKEN_ID,
    VOCABULARY_SIZE,
)

MAX_POSITIONS = 1024
"""``max_position_embeddings`` of all models, in tokens."""

SLIDING_WINDOW = 32
"""Tokens a sliding layer sees: small, so that short prompts already leave the window."""


class InsensitiveModelError(RuntimeError):
    """What was trained hardly notices that a key or a token of a state is missing."""


@dataclass(frozen=True)
class Recipe:
    """A tiny model: ``architecture`` are arguments of its transformers configuration class.

    Each of ``steps`` steps trains on ``text_tokens`` tokens of text and ``decks`` decks (see
    ``batches``). ``learning_rate`` is for matrices (OrthogonalMomentum), ``vector_learning_rate``
    for all other parameters (AdamW).
    """

    name: str
    model_type: str
    architecture: Mapping[str, Any]
    steps: int
    text_tokens: int = 1024
    decks: int = 8
    learning_rate: float = 0.03
    vector_learning_rate: float = 6e-3
    seed: int = 0

    def configuration(self) -> dict[str, Any]:
        """All arguments of the transformers configuration class."""
        return {**COMMON, **self.architecture}

    @property
    def required_share(self) -> float:
        """Share of missing keys that the trained model must notice; see ``sensitivity``."""
        from tests.support.tiny_models import sensitivity

        return sensitivity.REQUIRED_SHARE


@dataclass(frozen=True)
class SteadyRecipe(Recipe):
    """A tiny model that learns to deal without a fault, whatever its seed.

    A key that it misses then changes nothing but what it thinks left to deal. Other models are
    disturbed by it as well, and so notice more.
    """

    @property
    def required_share(self) -> float:
        """That of a model without a fault; one that is blind to far keys is below."""
        from tests.support.tiny_models import sensitivity

        return sensitivity.faultless_share()


@dataclass(frozen=True)
class RecurrentRecipe(Recipe):
    """A tiny model with recurrent states; trained and measured by ``recurrent``.

    Less text and more decks than others: states learn to count letters more slowly than attention.
    """

    text_tokens: int = 512
    decks: int = 24


@dataclass(frozen=True, kw_only=True)
class HeadRecipe(Recipe):
    """A drafting head for the tiny model ``source``; ``method`` is vLLM's: eagle, eagle3 or mtp.

    An ``mtp`` head is a layer of the target's own architecture and lies in one checkpoint with a
    copy of the target, which serves as target and draft.
    """

    source: str
    method: str


@dataclass(frozen=True, kw_only=True)
class BlockHeadRecipe(HeadRecipe):
    """A head of method dflash or dspark, trained to draft ``drafted`` tokens at once."""

    drafted: int


@dataclass(frozen=True, kw_only=True)
class AssistantRecipe(HeadRecipe):
    """Gemma 4's head of method mtp, whose layers read the target's keys; see ``assistant``."""


@dataclass(frozen=True)
class PerturbedRecipe:
    """The tiny model ``source`` with noise on its weights: a draft that costs no training.

    ``noise`` is its standard deviation, as a share of the standard deviation of each matrix.
    """

    name: str
    source: str
    noise: float
    seed: int = 0


@dataclass(frozen=True)
class FittedRecipe:
    """A model that is not trained but for its output matrices; see ``deepseek_v4``.

    Attributes:
        rows, length: rows of text, and their tokens.
        decks: rows of decks.
        iterations: of the search for the matrices.
        decay: weight of their squared size, per token.
    """

    name: str
    model_type: str
    rows: int = 24
    length: int = 128
    decks: int = 12
    iterations: int = 40
    decay: float = 200.0
    seed: int = 0


DerivedRecipe = HeadRecipe | PerturbedRecipe
AnyRecipe = Recipe | DerivedRecipe | FittedRecipe

COMMON: Mapping[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_POSITIONS,
    "bos_token_id": BOS_TOKEN_ID,
    "eos_token_id": EOS_TOKEN_ID,
    "pad_token_id": PAD_TOKEN_ID,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-6,
}
