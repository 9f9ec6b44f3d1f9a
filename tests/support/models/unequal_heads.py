# SPDX-License-Identifier: Apache-2.0
"""A Llama as a MiMo-V2 whose keys have 192 elements and whose values have 128.

transformers has no MiMo-V2, but vLLM's can be given weights with which it computes what the Llama
does. The 64 elements of a key that are rotated stay as they are (``partial_rotary_factor``). In the
others the query has numbers in the first half and the key in the second half, so their product is
zero. A matrix turns values into 128 elements, and the output projection undoes it. So no element of
the cache is zero, and the Llama, run by Hugging Face, is the reference.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

KEY_SIZE = 192
VALUE_SIZE = 128


def write_checkpoint(llama: Path, folder: Path) -> None:
    """Write the model that computes what the checkpoint ``llama`` (head size 64) does."""
    config = json.loads((llama / "config.json").read_text())
    size = config["head_dim"]
    mapped = {
        name: _mapped(name, weight, size)
        for name, weight in load_file(llama / "model.safetensors").items()
    }
    save_file(mapped, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps({**config, **_fields(config, size)}))


def _fields(config: dict[str, Any], size: int) -> dict[str, Any]:
    """All layers are of the kind that may have a window, without one: its rotary base has a name
    that transformers leaves in place."""
    layers = config["num_hidden_layers"]
    return {
        "architectures": ["MiMoV2FlashForCausalLM"],
        "head_dim": KEY_SIZE,
        "v_head_dim": VALUE_SIZE,
        "partial_rotary_factor": size / KEY_SIZE,
        "swa_num_attention_heads": config["num_attention_heads"],
        "swa_num_key_value_heads": config["num_key_value_heads"],
        "swa_head_dim": KEY_SIZE,
        "swa_v_head_dim": VALUE_SIZE,
        "swa_rope_theta": config["rope_parameters"]["rope_theta"],
        "sliding_window_size": -1,
        "layernorm_epsilon": config["rms_norm_eps"],
        "hybrid_layer_pattern": [1] * layers,
        "moe_layer_freq": [0] * layers,
        "n_routed_experts": 0,
    }


def _mapped(name: str, weight: torch.Tensor, size: int) -> torch.Tensor:
    """One weight; those of attention are [heads * size, hidden], the output's transposed."""
    kind = name.split(".")[-2]
    if kind == "q_proj":
        # Scores are divided by the root of the key size.
        rotated = _heads(weight, size) * (KEY_SIZE / size) ** 0.5
        return _joined(rotated, _noise(rotated), torch.zeros_like(rotated))
    if kind == "k_proj":
        rotated = _heads(weight, size)
        return _joined(rotated, torch.zeros_like(rotated), _noise(rotated))
    if kind == "v_proj":
        return torch.einsum("vs,hsd->hvd", _isometry(size), _heads(weight, size)).flatten(0, 1)
    if kind == "o_proj":
        heads = _heads(weight.T.contiguous(), size)
        return torch.einsum("vs,hsd->hvd", _isometry(size), heads).flatten(0, 1).T.contiguous()
    return weight


def _heads(weight: torch.Tensor, size: int) -> torch.Tensor:
    return weight.unflatten(0, (-1, size))


def _joined(*parts: torch.Tensor) -> torch.Tensor:
    return torch.cat(parts, dim=1).flatten(0, 1).contiguous()


def _noise(like: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(like.shape, generator=generator) * like.std()


def _isometry(size: int) -> torch.Tensor:
    """[128, size] with orthonormal columns."""
    generator = torch.Generator().manual_seed(1)
    return torch.linalg.qr(torch.randn(VALUE_SIZE, size, generator=generator)).Q
