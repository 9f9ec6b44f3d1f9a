# SPDX-License-Identifier: Apache-2.0
"""A small Mamba2 with random weights: recurrent layers alone, no attention."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Mamba2Config, Mamba2ForCausalLM

from tests.support.models import grouped_model
from tests.support.tiny_models import recurrent
from tests.support.tiny_models.recipes import COMMON


def make(directory: Path) -> Path:
    """Write the checkpoint, without a tokenizer. Returns the directory."""
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
    grouped_model.scan_in_one_chunk(model)
    for module in model.modules():
        if hasattr(module, "A_log"):
            module.A_log.data += 20
