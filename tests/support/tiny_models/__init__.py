# SPDX-License-Identifier: Apache-2.0
"""Byte-level language models, trained in under a minute each on text that every machine has.

They are small but real: Hugging Face checkpoints with a tokenizer, of all families that are tested,
sensitive to a corrupt cache (``sensitivity``), and good enough at text for drafts to be accepted.

    python -m tests.support.tiny_models deepseek_v2_target llama_draft

    from tests.support.tiny_models import model_directory
    model_directory("llama_target")      # the folder, trained now unless that was done before
"""

from tests.support.tiny_models.making import InsensitiveModelError, model_directory
from tests.support.tiny_models.recipes import DERIVED, FITTED_MODELS, FOR_THE_MATRIX, RECIPES

NAMES: tuple[str, ...] = tuple(RECIPES)
"""Names of the tiny models that are trained alone: language models of their own."""

ALL_NAMES: tuple[str, ...] = (*RECIPES, *DERIVED, *FITTED_MODELS)
"""With those made from another one (drafting heads, copies with noise on their weights) and those
whose output alone is fitted."""

TESTED_NAMES: tuple[str, ...] = tuple(name for name in ALL_NAMES if name not in FOR_THE_MATRIX)
"""All but those that only ``make matrix`` uses."""

__all__ = ["ALL_NAMES", "NAMES", "TESTED_NAMES", "InsensitiveModelError", "model_directory"]
