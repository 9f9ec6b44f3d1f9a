# SPDX-License-Identifier: Apache-2.0
"""Byte-level language models, trained once and kept in ``tests/data/tiny_models``.

They are small but real: Hugging Face checkpoints with a tokenizer, of all families that are tested,
sensitive to a corrupt cache (``sensitivity``), and good enough at text for drafts to be accepted.

    from tests.support.tiny_models import model_directory
    model_directory("llama_target")      # the folder, unpacked now unless that was done before

After a change of a recipe or of how models are trained (each takes less than a minute):

    python -m tests.support.tiny_models --train llama_target
"""

from tests.support.tiny_models.making import model_directory
from tests.support.tiny_models.recipe import InsensitiveModelError
from tests.support.tiny_models.recipes import DERIVED, FITTED_MODELS, RECIPES

NAMES: tuple[str, ...] = tuple(RECIPES)
"""Names of the tiny models that are trained alone: language models of their own."""

ALL_NAMES: tuple[str, ...] = (*RECIPES, *DERIVED, *FITTED_MODELS)
"""With those made from another one (drafting heads, copies with noise on their weights) and those
whose output alone is fitted."""

__all__ = ["ALL_NAMES", "NAMES", "InsensitiveModelError", "model_directory"]
