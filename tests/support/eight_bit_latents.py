# SPDX-License-Identifier: Apache-2.0
"""Tiny models whose description says that latents of MLA are kept in 8 bits (``fa_quant_type``).

As ModelSlim writes it: ``fa_quant_type`` is ``FAKQuant``, and each layer has a scale and an offset
of queries (for each head), latents and values.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.support.eight_bits import DESCRIPTION, FLOAT, WEIGHTS

KIND = "FAKQuant"


def described(source: Path, path: Path) -> Path:
    """A copy of a checkpoint in ``path`` that says so of the layers of the target."""
    shutil.copytree(source, path)
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / WEIGHTS)
    names = dict.fromkeys(tensors, FLOAT) | {"fa_quant_type": KIND}
    for layer in range(config["num_hidden_layers"]):
        for part, heads in (("fa_q", config["num_attention_heads"]), ("fa_k", 1), ("fa_v", 1)):
            stem = f"model.layers.{layer}.self_attn.{part}"
            # Coarse scales, so that latents that were rounded by them would change tokens.
            tensors[f"{stem}.scale"] = torch.full((heads, 1), 2.0)
            tensors[f"{stem}.offset"] = torch.zeros(heads, 1, dtype=torch.int8)
            names |= {f"{stem}.scale": KIND, f"{stem}.offset": KIND}
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    (path / DESCRIPTION).write_text(json.dumps(names, indent=1) + "\n")
    return path
