# SPDX-License-Identifier: Apache-2.0
"""A small Gemma 3n with random weights, whose last layers read the caches of earlier ones."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Gemma3nForCausalLM, Gemma3nTextConfig

from tests.support.tiny_models import model_directory
from tests.support.tiny_models.recipes import COMMON

LAYERS = ["sliding_attention", "full_attention"] * 3
OWNERS = {4: 2, 5: 3}
"""Layer without a cache -> the layer whose cache it reads: the last of its type before it."""


def make(directory: Path, tokenizer_of: str) -> Path:
    """Write the checkpoint, with the tokenizer of a tiny model. Returns the directory."""
    sizes = {
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 64,
        "hidden_size_per_layer_input": 32,
        "vocab_size_per_layer_input": COMMON["vocab_size"],
        "altup_num_inputs": 2,
        "laurel_rank": 16,
        "activation_sparsity_pattern": [0.0] * len(LAYERS),
    }
    attention = {
        "num_hidden_layers": len(LAYERS),
        "layer_types": LAYERS,
        "num_kv_shared_layers": len(OWNERS),
        "sliding_window": 32,
    }
    rest = {"tie_word_embeddings": True, "initializer_range": 0.08}
    config = Gemma3nTextConfig(**{**COMMON, **sizes, **attention, **rest})
    config.architectures = ["Gemma3nForCausalLM"]
    torch.manual_seed(0)
    weights = Gemma3nForCausalLM(config).float().state_dict()
    # Hugging Face writes names of the whole multimodal model, vLLM reads those of the text model.
    own = {name: part.contiguous() for name, part in weights.items() if name != "lm_head.weight"}
    directory.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(directory)
    save_file(own, directory / "model.safetensors", metadata={"format": "pt"})
    for file in Path(model_directory(tokenizer_of)).glob("*token*"):
        shutil.copy(file, directory)
    return directory


def wrong_tokens(
    directory: Path,
    prompts: Sequence[list[int]],
    completions: Sequence[list[int]],
    near_tie: float,
    prepare: Callable[[Any], None] = lambda model: None,
) -> list[tuple[int, int, int, int]]:
    """(prompt, position, token, right token) where Hugging Face in float32 chooses another.

    With its cache: Hugging Face shares keys and values through it, and without one not at all.
    ``prepare`` is called with Hugging Face's model.
    """
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    prepare(model)
    wrong = []
    for index, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion]), use_cache=True).logits[0]
        for position, token in enumerate(completion):
            row = logits[len(prompt) - 1 + position]
            if float(row.max() - row[token]) > near_tie:
                wrong.append((index, position, token, int(row.argmax())))
    return wrong
