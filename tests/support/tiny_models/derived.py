# SPDX-License-Identifier: Apache-2.0
"""Checkpoints made from another tiny model: drafting heads, and copies with noise."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import deepseek_v32, sensitivity, store
from tests.support.tiny_models.corpus import Corpus
from tests.support.tiny_models.head_sensitivity import (
    REQUIRED_HEAD_SHARE,
    head_removal_share,
)
from tests.support.tiny_models.head_training import build_head, train_head
from tests.support.tiny_models.heads import Head
from tests.support.tiny_models.recipe import InsensitiveModelError
from tests.support.tiny_models.recipes import HeadRecipe, PerturbedRecipe, find_recipe
from tests.support.tiny_models.training import Progress, rounded

WEIGHTS_FILE = "model.safetensors"
NOT_COPIED = shutil.ignore_patterns(store.DESCRIPTION_FILE, "config.json", WEIGHTS_FILE)

HEAD_ARCHITECTURES = {
    "eagle": "LlamaForCausalLM",
    "eagle3": "LlamaForCausalLMEagle3",
    "mtp": "DeepseekV3ForCausalLM",
}
"""Method -> the architecture that a checkpoint's config.json names, as published ones do."""


def load_language_model(path: Path) -> Any:
    """The checkpoint in ``path`` in float32, eager attention, in evaluation mode."""
    from transformers import AutoModelForCausalLM

    deepseek_v32.register()
    model = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    return model.eval()


def make_perturbed(recipe: PerturbedRecipe, source: Path, path: Path) -> None:
    """Write a copy of ``source`` with noise on every matrix into the folder ``path``."""
    model = load_language_model(source)
    generator = torch.Generator().manual_seed(recipe.seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(noise, alpha=recipe.noise * float(parameter.std()))
    rounded(model)
    share = sensitivity.removal_share(model, sensitivity.probe_contexts())
    if share <= sensitivity.REQUIRED_SHARE:
        raise ValueError(
            f"{recipe.name}: {share:.2f} of the single-key removals change the argmax; over "
            f"{sensitivity.REQUIRED_SHARE} is required. Use less noise (recipes.py)."
        )
    shutil.copytree(source, path, dirs_exist_ok=True, ignore=NOT_COPIED)
    model.save_pretrained(path)
    write_description(path, {"recipe": asdict(recipe), "sensitivity": {"share": share}})


def make_head(
    recipe: HeadRecipe, corpus: Corpus, source: Path, path: Path, progress: Progress | None
) -> None:
    """Train the head on the target in ``source`` and write its checkpoint into ``path``."""
    started = time.process_time()
    target = load_language_model(source)
    head = train_head(recipe, target, corpus, progress)
    seconds = round(time.process_time() - started, 1)
    share = head_removal_share(head)
    if share <= REQUIRED_HEAD_SHARE:
        raise InsensitiveModelError(
            f"{recipe.name}: {share:.3f} of the single-key removals change a proposal; over "
            f"{REQUIRED_HEAD_SHARE} is required. Train for more steps (recipes.py)."
        )
    weights = {name: value.clone() for name, value in head.weights().items()}
    config = head_config(recipe, source)
    if recipe.method == "mtp":
        shutil.copytree(source, path, dirs_exist_ok=True, ignore=NOT_COPIED)
        weights |= load_file(source / WEIGHTS_FILE)
    save_file(weights, path / WEIGHTS_FILE, metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    description = {"recipe": asdict(recipe), "processor_seconds": seconds}
    write_description(path, {**description, "sensitivity": {"share": share}})


def head_config(recipe: HeadRecipe, source: Path) -> dict[str, Any]:
    """Content of the head's config.json."""
    named = {
        "architectures": [HEAD_ARCHITECTURES[recipe.method]],
        "model_type": recipe.model_type,
        "dtype": "float32",
    }
    if recipe.method != "mtp":
        return {**recipe.configuration(), **named}
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    if recipe.model_type == config["model_type"]:
        return {**config, "num_nextn_predict_layers": 1}
    # The routing of DeepSeek-V2 under the name that vLLM looks for MTP layers with.
    return {**config, **named, "num_nextn_predict_layers": 1, "scoring_func": "softmax"}


def load_head(path: Path, target: Any) -> Head:
    """The head whose checkpoint is in ``path``, on its target's transformers model."""
    recipe = find_recipe(store.read_description(path)["recipe"]["name"])
    if not isinstance(recipe, HeadRecipe):
        raise ValueError(f"{path} holds {recipe.name}, which is no drafting head")
    head = build_head(recipe, target)
    head.load_weights(load_file(path / WEIGHTS_FILE))
    return head.eval()


def write_description(path: Path, description: dict[str, Any]) -> None:
    """Write what marks the checkpoint in ``path`` as complete."""
    (path / store.DESCRIPTION_FILE).write_text(json.dumps(description, indent=2) + "\n")
