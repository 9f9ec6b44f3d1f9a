# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of Gemma 4's drafting head: train, measure, write; or load one."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import store
from tests.support.tiny_models.assistant import (
    Assistant,
    assistant_loss,
    assistant_removal_share,
)
from tests.support.tiny_models.corpus import Corpus
from tests.support.tiny_models.derived import (
    WEIGHTS_FILE,
    load_language_model,
    write_description,
)
from tests.support.tiny_models.recipe import AssistantRecipe, InsensitiveModelError
from tests.support.tiny_models.recipes import find_recipe
from tests.support.tiny_models.sensitivity import probe_contexts
from tests.support.tiny_models.training import Progress, optimise

REQUIRED_ASSISTANT_SHARE = 0.05
"""A head whose share is not above this is no judge of the target's cache."""


def build_assistant(recipe: AssistantRecipe, target: Any) -> Assistant:
    """The head with its initial weights, from ``recipe.seed``."""
    from transformers import Gemma4TextConfig

    torch.manual_seed(recipe.seed)
    head = Assistant(target, Gemma4TextConfig(**recipe.configuration()))
    for parameter in head.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.02)
    return head


def make_assistant(
    recipe: AssistantRecipe, corpus: Corpus, source: Path, path: Path, progress: Progress | None
) -> None:
    """Train the head on the target in ``source`` and write its checkpoint into ``path``.

    Raises:
        InsensitiveModelError: it hardly notices that a key is missing.
    """
    started = time.process_time()
    target = load_language_model(source)
    head = optimise(build_assistant(recipe, target), assistant_loss, recipe, corpus, progress)
    seconds = round(time.process_time() - started, 1)
    share = assistant_removal_share(head, probe_contexts())
    if share <= REQUIRED_ASSISTANT_SHARE:
        raise InsensitiveModelError(
            f"{recipe.name}: {share:.3f} of the single-key removals change a proposal; over "
            f"{REQUIRED_ASSISTANT_SHARE} is required. Train for more steps (recipes.py)."
        )
    weights = {name: value.clone() for name, value in head.weights().items()}
    save_file(weights, path / WEIGHTS_FILE, metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(_config(recipe, target), indent=2) + "\n")
    description = {"recipe": asdict(recipe), "processor_seconds": seconds}
    write_description(path, {**description, "sensitivity": {"share": share}})


def _config(recipe: AssistantRecipe, target: Any) -> dict[str, Any]:
    """Content of the head's config.json."""
    text = {
        **recipe.configuration(),
        "model_type": "gemma4_text",
        "rope_parameters": target.config.rope_parameters,
        "num_kv_shared_layers": recipe.configuration()["num_hidden_layers"],
        "tie_word_embeddings": True,
    }
    return {
        "architectures": ["Gemma4AssistantForCausalLM"],
        "model_type": recipe.model_type,
        "dtype": "float32",
        "backbone_hidden_size": target.config.hidden_size,
        "tie_word_embeddings": True,
        "text_config": text,
    }


def load_assistant(path: Path, target: Any) -> Assistant:
    """The head whose checkpoint is in ``path``, on its target's transformers model."""
    recipe = find_recipe(store.read_description(path)["recipe"]["name"])
    if not isinstance(recipe, AssistantRecipe):
        raise ValueError(f"{path} holds {recipe.name}, which is no head of Gemma 4")
    head = build_assistant(recipe, target)
    head.load_weights(load_file(path / WEIGHTS_FILE))
    return head.eval()
