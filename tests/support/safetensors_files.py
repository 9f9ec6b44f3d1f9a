# SPDX-License-Identifier: Apache-2.0
"""Files in the format of safetensors, written without torch: zeros of given shapes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

NUMBERS: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "hidden_size": 16,
    "intermediate_size": 24,
    "vocab_size": 32,
    "max_position_embeddings": 1024,
}
"""A small model; the matrices of its layers have no two lengths in common."""


def write_tensors(file: Path, shapes: Mapping[str, tuple[int, ...]]) -> Path:
    """Zeros of two bytes each."""
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "F16", "shape": list(shape), "data_offsets": [start, end]}
    return write_file(file, json.dumps({"__metadata__": {"format": "pt"}, **header}), bytes(end))


def write_file(file: Path, header: str, data: bytes = b"", length: int | None = None) -> Path:
    """``length``: of the header as the file has it; by default the right one."""
    text = header.encode()
    size = len(text) if length is None else length
    file.write_bytes(size.to_bytes(8, "little") + text + data)
    return file


def layer_shapes(numbers: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the tensors of one layer."""
    width, inner = numbers["hidden_size"], numbers["intermediate_size"]
    queries = numbers["num_attention_heads"] * numbers["head_dim"]
    keys = numbers["num_key_value_heads"] * numbers["head_dim"]
    yield "input_layernorm.weight", (width,)
    yield "self_attn.q_proj.weight", (queries, width)
    yield "self_attn.k_proj.weight", (keys, width)
    yield "self_attn.v_proj.weight", (keys, width)
    yield "self_attn.o_proj.weight", (width, queries)
    yield "mlp.gate_proj.weight", (inner, width)
    yield "mlp.up_proj.weight", (inner, width)
    yield "mlp.down_proj.weight", (width, inner)
