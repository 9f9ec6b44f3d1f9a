# SPDX-License-Identifier: Apache-2.0
"""Checkpoints made from another tiny model: drafting heads, and copies with noise."""

from __future__ import annotations

import functools
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import Gemma4TextConfig, LlamaConfig, Qwen3Config

from tests.support.tiny_models import further_models, sensitivity, store
from tests.support.tiny_models.assistant import (
    Assistant,
    assistant_loss,
    assistant_removal_share,
)
from tests.support.tiny_models.block_head import (
    BlockHead,
    MarkovHead,
    block_loss,
    block_removal_share,
)
from tests.support.tiny_models.corpus import Corpus
from tests.support.tiny_models.heads import (
    MTP_HEADS,
    Eagle3Head,
    EagleHead,
    head_removal_share,
    proposal_loss,
)
from tests.support.tiny_models.recipe import AssistantRecipe, InsensitiveModelError
from tests.support.tiny_models.recipes import (
    BlockHeadRecipe,
    HeadRecipe,
    PerturbedRecipe,
    find_recipe,
)
from tests.support.tiny_models.training import optimise, rounded

WEIGHTS_FILE = "model.safetensors"
NOT_COPIED = shutil.ignore_patterns(store.DESCRIPTION_FILE, "config.json", WEIGHTS_FILE)

KINDS: dict[str, tuple[Any, str]] = {
    "eagle": (EagleHead, "LlamaForCausalLM"),
    "eagle3": (Eagle3Head, "LlamaForCausalLMEagle3"),
    "mtp": (MTP_HEADS, "DeepseekV3ForCausalLM"),
    "dflash": (BlockHead, "DFlashDraftModel"),
    "dspark": (MarkovHead, "Qwen3DSparkModel"),
}
"""Method -> its head, and the architecture that config.json names, as published ones do.

Of method mtp there is a head for each model type."""

OF_MASKS = ("dflash_config", "layer_types", "sliding_window")
"""What of a block head's config.json says what its layers see."""

REQUIRED_HEAD_SHARE, REQUIRED_SHARE_OF_CONTEXT = 0.02, 0.05
"""A head whose share is not above this is no judge of its cache. The second is for heads that read
keys of the target, or of the context."""


def load_language_model(path: Path) -> Any:
    """The checkpoint in ``path`` in float32, eager attention, in evaluation mode."""
    from transformers import AutoModelForCausalLM

    further_models.register()
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
    store.write_description(path, {"recipe": asdict(recipe), "sensitivity": {"share": share}})


def build_head(recipe: HeadRecipe, target: Any, **changes: Any) -> Any:
    """The head with its initial weights, from ``recipe.seed``; ``changes``: of configuration."""
    further_models.register()
    torch.manual_seed(recipe.seed)
    arguments, kind = {**recipe.configuration(), **changes}, KINDS[recipe.method][0]
    if isinstance(recipe, AssistantRecipe):
        head: Any = Assistant(target, Gemma4TextConfig(**arguments))
    elif recipe.method == "mtp":
        head = kind[recipe.model_type](target)
    else:
        config = Qwen3Config if isinstance(recipe, BlockHeadRecipe) else LlamaConfig
        head = kind(target, config(**arguments, attn_implementation="eager"))
    for parameter in head.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.02)
    return head


def _measures(
    recipe: HeadRecipe,
) -> tuple[Callable[..., torch.Tensor], Callable[..., float], float]:
    """What a head is trained by, its share of keys that it notices, and the share it must have."""
    if isinstance(recipe, AssistantRecipe):
        return assistant_loss, assistant_removal_share, REQUIRED_SHARE_OF_CONTEXT
    if isinstance(recipe, BlockHeadRecipe):
        return (
            functools.partial(block_loss, drafted=recipe.drafted),
            functools.partial(block_removal_share, drafted=recipe.drafted),
            REQUIRED_SHARE_OF_CONTEXT,
        )
    return proposal_loss, head_removal_share, REQUIRED_HEAD_SHARE


def make_head(recipe: HeadRecipe, corpus: Corpus, source: Path, path: Path) -> None:
    """Train the head on the target in ``source`` and write its checkpoint into ``path``.

    Raises:
        InsensitiveModelError: it hardly notices that a key is missing.
    """
    started = time.process_time()
    target = load_language_model(source)
    loss, share_of, required = _measures(recipe)
    head = optimise(build_head(recipe, target), loss, recipe, corpus)
    seconds = round(time.process_time() - started, 1)
    share = share_of(head, sensitivity.probe_contexts())
    if share <= required:
        raise InsensitiveModelError(
            f"{recipe.name}: {share:.3f} of the single-key removals change a proposal; over "
            f"{required} is required. Train for more steps (recipes.py)."
        )
    weights = {name: value.clone() for name, value in head.weights().items()}
    config = head_config(recipe, source)
    if store.source_of(recipe.name):
        shutil.copytree(source, path, dirs_exist_ok=True, ignore=NOT_COPIED)
        weights |= load_file(source / WEIGHTS_FILE)
    save_file(weights, path / WEIGHTS_FILE, metadata={"format": "pt"})
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    description = {"recipe": asdict(recipe), "processor_seconds": seconds}
    store.write_description(path, {**description, "sensitivity": {"share": share}})


def head_config(recipe: HeadRecipe, source: Path) -> dict[str, Any]:
    """Content of the head's config.json; ``source``: of its target."""
    named = {
        "architectures": [KINDS[recipe.method][1]],
        "model_type": recipe.model_type,
        "dtype": "float32",
    }
    if recipe.method != "mtp":
        return {**recipe.configuration(), **named}
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    if isinstance(recipe, AssistantRecipe):
        text = {
            **recipe.configuration(),
            "model_type": "gemma4_text",
            "rope_parameters": config["rope_parameters"],
            "num_kv_shared_layers": recipe.configuration()["num_hidden_layers"],
            "tie_word_embeddings": True,
        }
        return {
            **named,
            "architectures": ["Gemma4AssistantForCausalLM"],
            "backbone_hidden_size": config["hidden_size"],
            "tie_word_embeddings": True,
            "text_config": text,
        }
    if recipe.model_type == config["model_type"]:
        return {**config, "num_nextn_predict_layers": 1}
    # The routing of DeepSeek-V2 under the name that vLLM looks for MTP layers with.
    return {**config, **named, "num_nextn_predict_layers": 1, "scoring_func": "softmax"}


def load_head(path: Path, target: Any) -> Any:
    """The head whose checkpoint is in ``path``, on its target's transformers model."""
    recipe = find_recipe(store.read_description(path)["recipe"]["name"])
    if not isinstance(recipe, HeadRecipe):
        raise ValueError(f"{path} holds {recipe.name}, which is no drafting head")
    changes = {}
    if isinstance(recipe, BlockHeadRecipe):
        config = json.loads((path / "config.json").read_text())
        changes = {name: config[name] for name in OF_MASKS if name in config}
    head = build_head(recipe, target, **changes)
    head.load_weights(load_file(path / WEIGHTS_FILE))
    return head.eval()
