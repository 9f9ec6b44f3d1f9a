# SPDX-License-Identifier: Apache-2.0
"""Adapters (LoRA) of tiny models as PEFT saves them, and the models with these merged in."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.support.tiny_models import model_directory

RANK, ALPHA, NOISE = 8, 16, 0.2
EMBEDDING = "embed_tokens"
LOUDER = 5
"""How much more an embedding is changed: else a head drafts the same with it."""

# vllm-ascend 0.23.0 pads logits to a multiple of 64 columns and takes an adapter for the output
# layer to be that wide, which with the 264 tokens of the tiny models it is not.
VOCABULARY_SIZE = 320


OF_ALL_TOKENS = (
    *("model.embed_tokens.weight", "lm_head.weight"),
    *("markov_head.markov_w1.weight", "markov_head.markov_w2.weight"),
)
"""Matrices with a row for each token."""


def widened(name: str, folder: Path) -> Path:
    """A tiny model with more tokens, each as unlikely as the last one it has, which is unused."""
    source, directory = model_directory(name), folder / name
    shutil.copytree(source, directory)
    weights = load_file(source / "model.safetensors")
    for matrix in OF_ALL_TOKENS:
        if matrix in weights:
            last = weights[matrix][-1:].expand(VOCABULARY_SIZE - len(weights[matrix]), -1)
            weights[matrix] = torch.cat([weights[matrix], last])
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((source / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "vocab_size": VOCABULARY_SIZE}))
    return directory


def make_adapter(
    target: Path, folder: Path, adapted: Sequence[str], seed: int = 5, noise: float = NOISE
) -> tuple[Path, Path]:
    """An adapter of the layers whose names end with one of ``adapted``, in a new ``folder``.

    Args:
        target: the folder of the model.
        folder: gets the folders ``adapter`` and ``merged``, which are returned.
        adapted: ends of names, without ``.weight``.
        seed: of the adapter's weights.
        noise: size of what is added to a weight, relative to the weight.
    """
    generator = torch.Generator().manual_seed(seed)
    weights = load_file(target / "model.safetensors")
    adapter: dict[str, torch.Tensor] = {}
    for name, weight in weights.items():
        if not name.endswith(tuple(f"{part}.weight" for part in adapted)):
            continue
        scale = noise * weight.float().std() / RANK**0.5 * RANK / ALPHA
        embeds = EMBEDDING in name
        scale *= LOUDER if embeds else 1
        inputs, outputs = weight.shape if embeds else weight.shape[::-1]
        down = torch.randn(RANK, inputs, generator=generator)
        up = torch.randn(outputs, RANK, generator=generator) * scale
        path = f"base_model.model.{name.removesuffix('.weight')}.lora_"
        kind = "embedding_{}" if embeds else "{}.weight"
        adapter |= {f"{path}{kind.format('A')}": down, f"{path}{kind.format('B')}": up}
        added = ALPHA / RANK * up @ down
        weights[name] = (weight.float() + (added.T if embeds else added)).to(weight.dtype)
    assert adapter, f"no layer of {target} is named so: {adapted}"
    merged, saved = folder / "merged", folder / "adapter"
    shutil.copytree(target, merged)
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})
    saved.mkdir()
    _save(adapter, saved, adapted)
    return saved, merged


def _save(adapter: Mapping[str, torch.Tensor], folder: Path, adapted: Sequence[str]) -> None:
    save_file(dict(adapter), folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": ALPHA,
        "target_modules": [part.split(".")[-1] for part in adapted],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
