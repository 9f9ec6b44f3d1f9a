# SPDX-License-Identifier: Apache-2.0
"""Tiny models whose embeddings have more rows than their tokenizer has tokens."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import model_directory

MATRICES = ("model.embed_tokens.weight", "lm_head.weight")


def pad(name: str, directory: Path, rows: int, *, likely: bool) -> Path:
    """The checkpoint ``name`` with ``rows`` rows more, which no training ever saw.

    Args:
        likely: whether their logits are often the largest (twice those of letters); else they are
            zero.
    """
    source = model_directory(name)
    directory.mkdir()
    for file in source.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            (directory / file.name).symlink_to(file)
    weights = load_file(source / "model.safetensors")
    for matrix in MATRICES:
        padding = weights[matrix][ord("a") : ord("a") + rows]
        weights[matrix] = torch.cat([weights[matrix], padding * (2.0 if likely else 0.0)])
    save_file(weights, directory / "model.safetensors", {"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    config["vocab_size"] += rows
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def other_words(directory: Path) -> Path:
    """Give the tokenizer of a checkpoint other words: two bytes change their numbers."""
    file = directory / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    words = tokenizer["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]
    file.unlink()
    file.write_text(json.dumps(tokenizer))
    return directory
