# SPDX-License-Identifier: Apache-2.0
"""Unpack a tiny model's checkpoint; or make it anew: train, measure, write."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from tests.support.tiny_models import multimodal, store
from tests.support.tiny_models.corpus import Corpus, load_corpus
from tests.support.tiny_models.recipe import InsensitiveModelError
from tests.support.tiny_models.recipes import (
    AnyRecipe,
    FittedRecipe,
    HeadRecipe,
    PerturbedRecipe,
    Recipe,
    RecurrentRecipe,
    find_recipe,
)
from tests.support.tiny_models.tokenizer import BOS_TOKEN_ID

AnyTrained = TypeVar("AnyTrained", bound=Recipe)

MAX_ATTEMPTS = 3
"""Seeds that are tried until the model is sensitive enough; each trains for more steps."""

SENSITIVITY_TEXTS = 8
"""Pieces of held-out text on which sensitivity is reported."""


def model_directory(name: str, directory: Path | None = None) -> Path:
    """Folder of the checkpoint called ``name``, unpacked now if that was not done before.

    ``directory`` holds all checkpoints (default: ``store.default_directory()``).

    Raises:
        ValueError: no tiny model has that name.
        WrongBytesError: its file in the repository is not the one that ``SHA256SUMS`` names.
    """
    find_recipe(name)
    path = store.checkpoint_path(name, directory)
    if not store.is_complete(path):
        with store.locked(path):
            if not store.is_complete(path):
                with store.written_whole(path) as aside:
                    store.unpack(name, aside)
    return path


def train_anew(name: str) -> Path:
    """Train the tiny model called ``name``, and put it in the place of its file here.

    What it is made from is taken as it is. Returns the folder of the new checkpoint.

    Raises:
        InsensitiveModelError: training failed its purpose.
    """
    recipe = find_recipe(name)
    with TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.mkdir()
        _make(recipe, load_corpus(), path)
        store.pack(name, path)
    return model_directory(name)


def _make(recipe: AnyRecipe, corpus: Corpus, path: Path) -> None:
    from tests.support.tiny_models import further_models

    further_models.register()
    if isinstance(recipe, FittedRecipe):
        make_fitted(recipe, corpus, path)
        return
    if not isinstance(recipe, HeadRecipe | PerturbedRecipe):
        make(recipe, corpus, path)
        return
    from tests.support.tiny_models import derived

    source = model_directory(recipe.source)
    with one_thread():
        if isinstance(recipe, HeadRecipe):
            derived.make_head(recipe, corpus, source, path)
        else:
            derived.make_perturbed(recipe, source, path)


def make(recipe: Recipe, corpus: Corpus, path: Path) -> None:
    """Train ``recipe`` and write the checkpoint and its description into the folder ``path``.

    Runs on one thread: the models are too small for more, and several may train side by side.
    """
    with one_thread():
        started = time.process_time()
        model, seed, sensitivity = _train_sensitive(recipe, corpus)
        description = {
            "name": recipe.name,
            "recipe": asdict(recipe),
            "seed": seed,
            "processor_seconds": round(time.process_time() - started, 1),
            "held_out_loss": held_out_loss(model, corpus),
            "sensitivity": sensitivity,
        }
    model.generation_config = generation_config()
    if recipe.model_type in multimodal.TEXT_TYPES:
        multimodal.save(model, path)
    else:
        model.save_pretrained(path)
    _name_architectures(recipe, path)
    store.write_description(path, description)


def _name_architectures(recipe: Recipe, path: Path) -> None:
    """Write the recipe's ``architectures``, if it has any, in place of transformers' class."""
    if "architectures" in recipe.architecture:
        file = path / "config.json"
        config = json.loads(file.read_text())
        config["architectures"] = recipe.architecture["architectures"]
        file.write_text(json.dumps(config, indent=2) + "\n")


def make_fitted(recipe: FittedRecipe, corpus: Corpus, path: Path) -> None:
    """Write the checkpoint of a model whose output alone is fitted, and its description."""
    from tests.support.tiny_models import deepseek_v4

    started = time.process_time()
    with one_thread():
        deepseek_v4.make(recipe, corpus, path)
    seconds = round(time.process_time() - started, 1)
    description = {"recipe": asdict(recipe), "processor_seconds": seconds}
    store.write_description(path, description)


def attempts(recipe: AnyTrained) -> Iterator[AnyTrained]:
    """``recipe`` as it is tried: each time with the next seed, and half its steps more."""
    for attempt in range(MAX_ATTEMPTS):
        steps = recipe.steps + attempt * recipe.steps // 2
        yield replace(recipe, seed=recipe.seed + attempt, steps=steps)


def _train_sensitive(recipe: Recipe, corpus: Corpus) -> tuple[Any, int, dict[str, Any]]:
    from tests.support.tiny_models import sensitivity, training

    if isinstance(recipe, RecurrentRecipe):
        return _train_recurrent(recipe, corpus)
    shares = []
    for attempt in attempts(recipe):
        model = training.train(attempt, corpus)
        result = sensitivity.measure_sensitivity(model, held_out_pieces(corpus, 64))
        if result.suffices(recipe.required_share):
            return model, attempt.seed, asdict(result)
        shares.append([round(share, 3) for share in (result.share, *result.share_by_layer)])
    raise InsensitiveModelError(
        f"{recipe.name}: {shares} of the single-key removals (of all layers, and of each) change "
        f"the argmax with the seeds from {recipe.seed} on; over {recipe.required_share:.3g} is "
        f"required, and {sensitivity.REQUIRED_LAYER_SHARE} of each. Train for more steps "
        "(recipes.py)."
    )


def _train_recurrent(recipe: RecurrentRecipe, corpus: Corpus) -> tuple[Any, int, dict[str, Any]]:
    from tests.support.tiny_models import recurrent

    found = []
    for attempt in attempts(recipe):
        model = recurrent.train(attempt, corpus)
        result = recurrent.measure_sensitivity(model, held_out_pieces(corpus, 64))
        if result.suffices:
            return model, attempt.seed, asdict(result)
        found.append((round(result.share, 3), round(result.share_of_keys, 3)))
    raise InsensitiveModelError(
        f"{recipe.name}: {found} of the tokens missing in states, and of the keys missing in "
        f"attention, change the argmax with the seeds from {recipe.seed} on; over "
        f"{recurrent.REQUIRED_STATE_SHARE} and {recurrent.REQUIRED_KEY_SHARE} is required. Train "
        "for more steps (recipes.py)."
    )


def held_out_pieces(corpus: Corpus, length: int) -> list[bytes]:
    """The first ``length`` bytes of held-out pieces that are long enough."""
    long_enough = [piece[:length] for piece in corpus.held_out if len(piece) >= length]
    return long_enough[:SENSITIVITY_TEXTS]


def held_out_loss(model: Any, corpus: Corpus) -> float:
    """Mean cross entropy (nats per byte) on rows of 256 tokens of held-out text."""
    import torch

    from tests.support.tiny_models.training import next_token_loss

    rows = [[BOS_TOKEN_ID, *piece] for piece in held_out_pieces(corpus, 255)]
    with torch.inference_mode():
        return round(next_token_loss(model, torch.tensor(rows)).item(), 4)


def generation_config() -> Any:
    """Greedy, with the special tokens of the byte tokenizer."""
    from transformers import GenerationConfig

    from tests.support.tiny_models import tokenizer

    return GenerationConfig(
        bos_token_id=tokenizer.BOS_TOKEN_ID,
        eos_token_id=tokenizer.EOS_TOKEN_ID,
        pad_token_id=tokenizer.PAD_TOKEN_ID,
        do_sample=False,
    )


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch compute on one thread inside the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
