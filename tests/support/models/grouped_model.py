# SPDX-License-Identifier: Apache-2.0
"""A small Nemotron-H with random weights: Mamba2 layers whose heads share B and C in two groups."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import (
    Mamba2Config,
    Mamba2ForCausalLM,
    NemotronHConfig,
    NemotronHForCausalLM,
)

from tests.support.tiny_models import model_directory, recurrent
from tests.support.tiny_models.recipes import COMMON

LAYERS = ["mamba", "attention", "mamba"]


def make(directory: Path, tokenizer_of: str) -> Path:
    """Write the checkpoint, with the tokenizer of a tiny model. Returns the directory.

    It is of this family because transformers' code for it normalises the gated output by groups, as
    vLLM does for all families and as Mamba2's authors do. Its code for Bamba and Granite, whose
    published models have one group, normalises all groups together.
    """
    sizes = {
        "layers_block_type": LAYERS,
        "num_hidden_layers": len(LAYERS),
        "num_attention_heads": 2,
        "head_dim": 64,
        "n_groups": 2,
        "ssm_state_size": 32,
        "mamba_num_heads": 4,
        "mamba_head_dim": 64,
        "chunk_size": 16,
        "mamba_ssm_cache_dtype": "float32",
        "initializer_range": 0.15,
        # transformers without CUDA holds time steps above this, where its kernels and vLLM do not.
        "time_step_min": 1e-12,
    }
    config = NemotronHConfig(**{**COMMON, **sizes})
    torch.manual_seed(0)
    model = NemotronHForCausalLM(config).float()
    for module in model.modules():
        if hasattr(module, "A_log"):
            recurrent.let_states_last(module)
            # Groups of unlike size, so that it matters which are normalised together.
            with torch.no_grad():
                module.in_proj.weight[: len(module.norm.weight) // 2] *= 4
    # The names of published checkpoints, which vLLM reads; transformers saves another one.
    weights = {
        name.replace("model.", "backbone.", 1): part for name, part in model.state_dict().items()
    }
    directory.mkdir(parents=True, exist_ok=True)
    config.architectures = ["NemotronHForCausalLM"]
    config.save_pretrained(directory)
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    for file in Path(model_directory(tokenizer_of)).glob("*token*"):
        shutil.copy(file, directory)
    return directory


def scan_in_one_chunk(model: Any) -> None:
    """Let transformers' scan take all tokens at once (160): its states behind a chunk are wrong.

    (5.5.4 sums them over the chunks that they reach, not over those that they come from.)
    """
    for module in model.modules():
        if hasattr(module, "chunk_size"):
            module.chunk_size = 160


def normalise_all_groups_together(model: Any) -> None:
    """A wrong model: what Bamba's and Granite's code would do."""
    scan_in_one_chunk(model)
    for module in model.modules():
        if hasattr(module, "group_size"):
            module.group_size *= 2


def make_states_alone(directory: Path) -> Path:
    """A small Mamba2, recurrent layers alone and no attention, without a tokenizer."""
    sizes = {
        "expand": 2,
        "num_heads": 4,
        "head_dim": 64,
        "n_groups": 1,
        "state_size": 32,
        "chunk_size": 16,
        "initializer_range": 0.15,
    }
    torch.manual_seed(0)
    model = Mamba2ForCausalLM(Mamba2Config(**{**COMMON, **sizes})).float()
    for module in model.modules():
        if hasattr(module, "A_log"):
            recurrent.let_states_last(module)
    model.save_pretrained(directory)
    return directory


def forget_earlier(model: Any) -> None:
    """A wrong model: its states keep nothing of earlier tokens."""
    scan_in_one_chunk(model)
    for module in model.modules():
        if hasattr(module, "A_log"):
            module.A_log.data += 20
