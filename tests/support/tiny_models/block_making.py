# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of heads of methods dflash and dspark: train, measure, write; or load one."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import store
from tests.support.tiny_models.block_head import (
    BlockHead,
    block_loss,
    block_removal_share,
)
from tests.support.tiny_models.corpus import Corpus
from tests.support.tiny_models.derived import (
    WEIGHTS_FILE,
    load_language_model,
    write_description,
)
from tests.support.tiny_models.markov_head import MarkovHead
from tests.support.tiny_models.recipe import InsensitiveModelError
from tests.support.tiny_models.recipes import BlockHeadRecipe, find_recipe
from tests.support.tiny_models.sensitivity import probe_contexts
from tests.support.tiny_models.training import Progress, optimise

HEADS: dict[str, tuple[type[BlockHead], str]] = {
    "dflash": (BlockHead, "DFlashDraftModel"),
    "dspark": (MarkovHead, "Qwen3DSparkModel"),
}
"""Method -> its head, and what vLLM calls it."""

REQUIRED_BLOCK_SHARE = 0.05
"""A head whose share is not above this is no judge of its cache."""


OF_MASKS = ("dflash_config", "layer_types", "sliding_window")
"""What of a checkpoint's configuration says what its layers see."""


def build_block_head(recipe: BlockHeadRecipe, target: Any, **changes: Any) -> BlockHead:
    """The head with its initial weights, from ``recipe.seed``; ``changes``: of configuration."""
    from transformers import Qwen3Config

    torch.manual_seed(recipe.seed)
    arguments = {**recipe.configuration(), **changes}
    config = Qwen3Config(**arguments, attn_implementation="eager")
    head = HEADS[recipe.method][0](target, config)
    for parameter in head.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.02)
    return head


def make_block_head(
    recipe: BlockHeadRecipe, corpus: Corpus, source: Path, path: Path, progress: Progress | None
) -> None:
    """Train the head on the target in ``source`` and write its checkpoint into ``path``.

    Raises:
        InsensitiveModelError: it hardly notices that a key is missing.
    """
    started = time.process_time()

    def loss(head: BlockHead, tokens: torch.Tensor) -> torch.Tensor:
        return block_loss(head, tokens, recipe.drafted)

    head = build_block_head(recipe, load_language_model(source))
    head = optimise(head, loss, recipe, corpus, progress)
    seconds = round(time.process_time() - started, 1)
    share = block_removal_share(head, probe_contexts(), recipe.drafted)
    if share <= REQUIRED_BLOCK_SHARE:
        raise InsensitiveModelError(
            f"{recipe.name}: {share:.3f} of the single-key removals change a proposal; over "
            f"{REQUIRED_BLOCK_SHARE} is required. Train for more steps (recipes.py)."
        )
    weights = {name: value.clone() for name, value in head.weights().items()}
    save_file(weights, path / WEIGHTS_FILE, metadata={"format": "pt"})
    config = {
        **recipe.configuration(),
        "architectures": [HEADS[recipe.method][1]],
        "model_type": recipe.model_type,
        "dtype": "float32",
    }
    (path / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    description = {"recipe": asdict(recipe), "processor_seconds": seconds}
    write_description(path, {**description, "sensitivity": {"share": share}})


def load_block_head(path: Path, target: Any) -> BlockHead:
    """The head whose checkpoint is in ``path``, on its target's transformers model."""
    recipe = find_recipe(store.read_description(path)["recipe"]["name"])
    if not isinstance(recipe, BlockHeadRecipe):
        raise ValueError(f"{path} holds {recipe.name}, which is no head of blocks")
    config = json.loads((path / "config.json").read_text())
    head = build_block_head(recipe, target, **{x: config[x] for x in OF_MASKS if x in config})
    head.load_weights(load_file(path / WEIGHTS_FILE))
    return head.eval()
