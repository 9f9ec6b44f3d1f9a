# SPDX-License-Identifier: Apache-2.0
"""A node that decodes with latents of MLA in 8 bits: its weights, and the judge of its tokens.

On A2 and A3 vllm-ascend keeps such latents where ``kv_role`` is ``kv_consumer`` alone. Another node
reads the prompt with plain latents; those that come are quantised, and so are the queries of each
row that this node computes: the last token of the prompt and what follows. Both nodes multiply with
8 bits (W8A8_DYNAMIC) where a row becomes queries and latents, as the operator of a decoding step,
``npu_mla_prolog_v2``, takes no other weights.
"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from tests.support import eight_bits, reference, speculation
from tests.support.eight_bits import (
    DESCRIPTION,
    DYNAMIC,
    FLOAT,
    LATENTS_KIND,
    WEIGHTS,
    per_token,
)
from tests.support.tiny_models import derived, further_models
from tests.support.tiny_models.heads import Head

SCALE = 2.0**-5
"""What a whole number of a latent stands for: fine enough for 127 of them, coarse enough to be
noticed."""
MATRICES = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa")
EPSILON = 1e-5
"""What the norms of a decoding step add: vllm-ascend leaves it to the operator's default."""


def described(source: Path, path: Path) -> Path:
    """A copy of a checkpoint in ``path``; its description tells this of the target's layers."""
    shutil.copytree(source, path)
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / WEIGHTS)
    kinds = dict.fromkeys(tensors, FLOAT)
    for layer in range(config["num_hidden_layers"]):
        stem = f"model.layers.{layer}.self_attn"
        for name in MATRICES:
            del kinds[f"{stem}.{name}.weight"]
            parts = eight_bits.dynamic(tensors.pop(f"{stem}.{name}.weight").float())
            tensors |= {f"{stem}.{name}.{part}": value for part, value in parts.items()}
            kinds |= {f"{stem}.{name}.{part}": DYNAMIC for part in parts}
        for part, heads in (("fa_q", config["num_attention_heads"]), ("fa_k", 1), ("fa_v", 1)):
            tensors[f"{stem}.{part}.scale"] = torch.full((heads, 1), SCALE)
            tensors[f"{stem}.{part}.offset"] = torch.zeros(heads, 1, dtype=torch.int8)
            kinds |= {f"{stem}.{part}.{name}": LATENTS_KIND for name in ("scale", "offset")}
    save_file(tensors, path / WEIGHTS, metadata={"format": "pt"})
    (path / DESCRIPTION).write_text(
        json.dumps({**kinds, "fa_quant_type": LATENTS_KIND}, indent=1) + "\n"
    )
    return path


@functools.lru_cache(maxsize=2)
def load(directory: Path, source: Path) -> Any:
    """The model of ``source`` with the matrices in ``directory``, which rounds their inputs."""
    tensors = load_file(directory / WEIGHTS)
    further_models.register()
    model = reference.load_whole(AutoModelForCausalLM, source)
    for name, module in model.named_modules():
        if name.endswith(MATRICES):
            whole, scale = tensors[f"{name}.weight"], tensors[f"{name}.weight_scale"]
            module.weight.data = whole.float() * scale.float()
            module.register_forward_pre_hook(lambda _, given: (per_token(given[0]),))
    eight_bits.round_parts(model)
    return model


@contextmanager
def decoded_from(model: Any, first: int) -> Iterator[None]:
    """Rows from ``first`` on are those of the node that decodes."""
    parts = [layer.self_attn for layer in model.model.layers]
    before = [part.forward for part in parts]
    for part in parts:
        part.forward = functools.partial(_attend, part, first)
    try:
        yield
    finally:
        for part, forward in zip(parts, before, strict=True):
            part.forward = forward


def _attend(
    part: Any,
    first: int,
    hidden_states: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    **_others: Any,
) -> tuple[torch.Tensor, None]:
    """MLA of one sequence [1, tokens, width]: plain rows, then rows of whole numbers."""
    compressed = _normed(part.q_a_proj(hidden_states), part.q_a_layernorm, first)[0]
    heads = part.q_b_proj(compressed).unflatten(1, (part.num_heads, -1))
    plain, rope = heads.split([part.qk_nope_head_dim, part.qk_rope_head_dim], -1)
    sizes = [part.kv_lora_rank, part.qk_rope_head_dim]
    latents, keys = part.kv_a_proj_with_mqa(hidden_states).split(sizes, -1)
    latents = _normed(latents, part.kv_a_layernorm, first)[0]
    cos, sin = (table[0].unsqueeze(1) for table in position_embeddings)
    rope, keys = (_bfloat16(_turned(rows, cos, sin)) for rows in (rope, keys[0].unsqueeze(1)))
    up = part.kv_b_proj.weight.unflatten(0, (part.num_heads, -1))
    up_keys, up_values = up.split([part.qk_nope_head_dim, part.v_head_dim], 1)

    queries = _bfloat16(torch.einsum("tnd,ndl->tnl", plain, up_keys))
    rounded = (latents / SCALE).round().clamp(-128, 127) * SCALE
    read = _attended(queries[:first], rope[:first], latents, keys, part.scaling, 0)
    decoded = _attended(
        per_token(queries[first:]), rope[first:], rounded, keys, part.scaling, first
    )
    attended = _bfloat16(torch.cat([read, decoded]))
    values = _bfloat16(torch.einsum("tnl,nvl->tnv", attended, up_values))
    return part.o_proj(values.flatten(1).unsqueeze(0)), None


def _attended(
    queries: torch.Tensor,
    rope: torch.Tensor,
    latents: torch.Tensor,
    keys: torch.Tensor,
    scaling: float,
    first: int,
) -> torch.Tensor:
    """Rows [rows, heads, rank] of what tokens from ``first`` on see in latents and rotated keys."""
    scores = torch.einsum("tnl,kl->tnk", queries, latents)
    scores = (scores + torch.einsum("tnd,kd->tnk", rope, keys[:, 0])) * scaling
    rows = torch.arange(first, first + queries.shape[0])[:, None]
    unseen = torch.arange(latents.shape[0])[None] > rows
    weights = scores.masked_fill(unseen[:, None], float("-inf")).softmax(-1)
    return torch.einsum("tnk,kl->tnl", weights, latents)


def _normed(rows: torch.Tensor, norm: Any, first: int) -> torch.Tensor:
    """``norm`` of rows [1, tokens, width], with what a decoding step adds from ``first`` on."""
    mean = rows[:, first:].square().mean(-1, keepdim=True)
    decoded = rows[:, first:] * torch.rsqrt(mean + EPSILON) * norm.weight
    return torch.cat([norm(rows[:, :first]), decoded], 1)


def _turned(rows: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Pairs (0, 1), (2, 3), ... of the last dimension, turned, in halves."""
    first, second = rows[..., 0::2], rows[..., 1::2]
    halves = torch.cat([first, second], -1)
    return halves * cos + torch.cat([-second, first], -1) * sin


def _bfloat16(values: torch.Tensor) -> torch.Tensor:
    return values.bfloat16().float()


def hidden_states(model: Any, tokens: Sequence[int], first: int) -> Any:
    """The model's output for ``tokens``, of which those from ``first`` on are decoded."""
    with torch.inference_mode(), decoded_from(model, first):
        given = torch.tensor([list(tokens)])
        return model(input_ids=given, use_cache=False, output_hidden_states=True)


def rows_of(
    directory: Path, source: Path, context: Sequence[int], tokens: Sequence[int], read: int
) -> torch.Tensor:
    """Logits after a context and each token behind it; another node read ``read`` tokens."""
    output = hidden_states(load(directory, source), [*context, *tokens], read)
    return output.logits[0, len(context) - 1 :].float()


def rows_of_head(
    directory: Path, source: Path, context: Sequence[int], tokens: Sequence[int], read: int
) -> torch.Tensor:
    """As ``rows_of``, of the plain drafting layer in ``source`` on the target's hidden states."""
    output = hidden_states(load(directory, source), context[:-1], read)
    head = load_head(directory, source)
    with torch.inference_mode():
        return speculation.rows_of_head(head, head.known(output.hidden_states), context, tokens)


@functools.lru_cache(maxsize=2)
def load_head(directory: Path, source: Path) -> Head:
    """The head in ``source`` on that model; each of its parts gives bfloat16."""
    head = derived.load_head(source, load(directory, source))
    eight_bits.round_parts(head)
    return head
