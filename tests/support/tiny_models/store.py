# SPDX-License-Identifier: Apache-2.0
"""Where trained models are kept: by content, written whole or not at all, trained by one process.

A checkpoint's folder is named by its recipe's name and a hash of everything that decides its
weights: recipe, corpus, training code, versions of torch and transformers. So a change retrains
and nothing has to be thrown away by hand. But a newer transformers takes what an older one trained,
as it takes published checkpoints: hosts that are tested one after another train once.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mkv_ascend import envs
from tests.support.tiny_models.corpus import Corpus
from tests.support.tiny_models.recipe import AssistantRecipe
from tests.support.tiny_models.recipes import (
    RECIPES,
    AnyRecipe,
    BlockHeadRecipe,
    FittedRecipe,
    HeadRecipe,
    PerturbedRecipe,
    Recipe,
    RecurrentRecipe,
)
from tests.support.tiny_models.recipes_sparse import SparseRecipe

DESCRIPTION_FILE = "mkv_ascend.json"
"""In each checkpoint: recipe, seconds of training, losses, sensitivity. Written last."""

CODE_FILES = ("batches.py", "optimizer.py", "sensitivity.py", "tokenizer.py", "training.py")
"""Sources of this package that decide the weights or what is measured on them."""

DERIVED_CODE_FILES = ("derived.py", "head_sensitivity.py", "head_training.py", "heads.py")
"""Those that decide on checkpoints made from others, besides."""

RECURRENT_CODE_FILES = ("recurrent.py", "state_space.py")
"""Those that decide on models with recurrent states, besides."""

OWN_CODE_FILES: dict[str, tuple[str, ...]] = {
    "hy_v3": ("hy_v3.py", "own_names.py"),
    "kimi_linear": ("kimi_linear.py", "own_names.py"),
    "longcat_flash": ("longcat_flash.py", "own_names.py"),
    "mimo_v2_flash": ("mimo_v2.py", "own_names.py", "plain_attention.py"),
    "nemotron_h": ("nemotron_h.py", "own_names.py"),
    "pangu_ultra_moe": ("openpangu.py", "own_names.py"),
    "step3p5": ("own_names.py", "plain_attention.py", "step3p5.py"),
}
"""Family -> those that decide on its model, besides: transformers has no class of it."""

SPARSE_CODE_FILES = ("deepseek_v32.py",)
"""Those that decide on models whose attention chooses keys, besides."""

MTP_CODE_FILES = {
    "deepseek_v32": ("heads_sparse.py",),
    "ernie4_5_moe": ("heads_ernie.py",),
    "exaone_moe": ("heads_exaone.py",),
    "glm4_moe": ("heads_glm4.py",),
    "glm4_moe_lite": ("heads_glm4.py", "heads_glm4_lite.py"),
    "hy_v3": ("hy_v3.py", "heads_glm4.py"),
    "longcat_flash": ("longcat_flash.py",),
    "mimo_v2_flash": ("mimo_v2.py", "plain_attention.py"),
    "nemotron_h": ("nemotron_h.py",),
    "pangu_ultra_moe": ("openpangu.py", "heads_glm4.py", "heads_glm4_lite.py"),
    "qwen2": ("heads_mimo.py",),
    "qwen3_5": ("heads_qwen3_5.py",),
    "qwen3_5_moe": ("heads_qwen3_5.py",),
    "step3p5": ("plain_attention.py", "step3p5.py"),
}
"""Family -> those that decide on its drafting layer, besides."""

FITTED_CODE_FILES = ("deepseek_v4.py", "../deepseek_v4.py")
"""Those that decide on models of which the output alone is fitted."""

BLOCK_CODE_FILES = ("block_head.py", "block_making.py", "markov_head.py")
"""Those that decide on heads of methods dflash and dspark, besides."""

ASSISTANT_CODE_FILES = ("assistant.py", "assistant_making.py")
"""Those that decide on Gemma 4's head, besides."""


TAKEN_FROM = {"5.14.1": "5.5.4"}
"""Version of transformers -> an older one whose checkpoints it takes; both are pinned by a host."""


def default_directory() -> Path:
    """``tiny_models`` in the folder of ``MKV_ASCEND_CACHE``."""
    return envs.CACHE.get() / "tiny_models"


def content_hash(recipe: AnyRecipe, corpus: Corpus, transformers: str | None = None) -> str:
    """12 hexadecimal digits that change with anything that decides the checkpoint.

    Args:
        transformers: the version that trains it; None: the installed one.
    """
    transformers = transformers or version("transformers")
    content: dict[str, Any] = {
        "recipe": asdict(recipe),
        "corpus": corpus.digest,
        "code": {name: _source_digest(name) for name in CODE_FILES},
        "torch": version("torch"),
        "transformers": transformers,
    }
    if isinstance(recipe, FittedRecipe):
        content["code"] |= {name: _source_digest(name) for name in FITTED_CODE_FILES}
    elif not isinstance(recipe, PerturbedRecipe):
        content["configuration"] = recipe.configuration()
    if isinstance(recipe, RecurrentRecipe):
        content["code"] |= {name: _source_digest(name) for name in RECURRENT_CODE_FILES}
    if isinstance(recipe, Recipe) and not isinstance(recipe, HeadRecipe):
        sources: tuple[str, ...] = OWN_CODE_FILES.get(recipe.model_type, ())
        content["code"] |= {name: _source_digest(name) for name in sources}
    if isinstance(recipe, SparseRecipe):
        content["code"] |= {name: _source_digest(name) for name in SPARSE_CODE_FILES}
    if isinstance(recipe, PerturbedRecipe | HeadRecipe):
        content["code"] |= {name: _source_digest(name) for name in DERIVED_CODE_FILES}
        if isinstance(recipe, BlockHeadRecipe):
            content["code"] |= {name: _source_digest(name) for name in BLOCK_CODE_FILES}
        if isinstance(recipe, AssistantRecipe):
            content["code"] |= {name: _source_digest(name) for name in ASSISTANT_CODE_FILES}
        if isinstance(recipe, HeadRecipe):
            own = MTP_CODE_FILES.get(recipe.model_type, ())
            content["code"] |= {name: _source_digest(name) for name in own}
        content["source"] = content_hash(RECIPES[recipe.source], corpus, transformers)
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


IMPORT = re.compile(r"^(?:from|import) [^(\n]*(?:\([^)]*\))?\n", re.MULTILINE)


def _source_digest(name: str) -> str:
    """SHA-256 of a source without its imports: where a file lives decides nothing."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return hashlib.sha256(IMPORT.sub("", text).encode()).hexdigest()


def checkpoint_path(recipe: AnyRecipe, corpus: Corpus, directory: Path) -> Path:
    """Folder of the checkpoint of ``recipe``, whether it is there or not."""
    older = TAKEN_FROM.get(version("transformers"))
    if older is not None and not _is_our_own(recipe):
        path = directory / f"{recipe.name}-{content_hash(recipe, corpus, older)}"
        if is_complete(path):
            return path
    return own_path(recipe, corpus, directory)


def _is_our_own(recipe: AnyRecipe) -> bool:
    """Whether modules of ours make its model, or the one that it is made from.

    They may follow the host: Kimi delta attention has Kimi-K3's gate where the host knows it.
    """
    while isinstance(recipe, HeadRecipe | PerturbedRecipe):
        recipe = RECIPES[recipe.source]
    return recipe.model_type in OWN_CODE_FILES


def own_path(recipe: AnyRecipe, corpus: Corpus, directory: Path) -> Path:
    """Folder of the checkpoint that the installed transformers trains, whether it is there."""
    return directory / f"{recipe.name}-{content_hash(recipe, corpus)}"


def is_complete(path: Path) -> bool:
    """Whether ``path`` holds a whole checkpoint."""
    return (path / DESCRIPTION_FILE).is_file()


def read_description(path: Path) -> dict[str, Any]:
    """What was recorded when the checkpoint in ``path`` was made."""
    description: dict[str, Any] = json.loads((path / DESCRIPTION_FILE).read_text())
    return description


def read_failure(path: Path) -> str | None:
    """Why the checkpoint ``path`` could not be made when it was tried last, if it was."""
    file = _failure_file(path)
    return file.read_text(encoding="utf-8") if file.is_file() else None


def write_failure(path: Path, why: str) -> None:
    """Remember that the checkpoint ``path`` could not be made; its lock is held."""
    _failure_file(path).write_text(why, encoding="utf-8")


def forget_failure(path: Path) -> None:
    """Forget that the checkpoint ``path``, which is there now, could not be made."""
    _failure_file(path).unlink(missing_ok=True)


def _failure_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.failure")


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of the checkpoint ``path``; a second process waits here until it is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.name}.lock"), "w") as file:
        # Freed by the kernel with the file, so a process that dies leaves nobody waiting.
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """A folder to write into that becomes ``path`` when the block ends without an error."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        shutil.rmtree(path, ignore_errors=True)
        aside.rename(path)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
