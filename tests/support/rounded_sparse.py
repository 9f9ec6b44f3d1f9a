# SPDX-License-Identifier: Apache-2.0
"""DeepSeek-V3.2 by transformers under an engine's rounding: bfloat16, and 8-bit caches if asked.

A layer that chooses keys turns a rounding into a jump: it chooses one of two keys of nearly equal
scores, and everything after that is another model's. A float32 run chooses other keys than
an engine in bfloat16. So the judge is a run that rounds where the engine does.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from tests.support.tiny_models import deepseek_v32

LARGEST = 127
"""The largest 8-bit integer; a token's scale is its largest value over it."""


TILE_SIZE = 128
"""Values of a latent that share a scale."""


@dataclass(frozen=True)
class Rounding:
    """What is rounded to 8 bits, beside bfloat16 everywhere.

    Attributes:
        index_topk: keys that are chosen, where it is not the checkpoint's number.
        indexer: queries and keys of the indexer (vllm-ascend's ``enable_sparse_li_c8``).
        latent: the cached latents (vllm-ascend's ``enable_sparse_sfa_c8``).
        key_scales: False leaves the scales of the indexer's keys out, which is a fault: a judge
            that an engine must not agree with.
    """

    index_topk: int | None = None
    indexer: bool = False
    latent: bool = False
    key_scales: bool = True


@functools.lru_cache(maxsize=3)
def load(directory: Path, rounding: Rounding) -> Any:
    """The checkpoint in ``directory`` in bfloat16, its last projection in float32.

    Logits in bfloat16 would tie where nothing does.
    """
    deepseek_v32.register()
    model = AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.bfloat16, attn_implementation="eager", local_files_only=True
    )
    model.lm_head.float().register_forward_pre_hook(lambda _, inputs: (inputs[0].float(),))
    for layer in model.model.layers:
        attention = layer.self_attn
        attention.indexer.index_topk = rounding.index_topk or attention.indexer.index_topk
        if rounding.indexer:
            attention.indexer.forward = functools.partial(
                chosen_by_8_bits, attention.indexer, rounding.key_scales
            )
        if rounding.latent:
            attention.kv_a_layernorm.register_forward_hook(lambda *call: through_8_bits(call[-1]))
    return model.eval()


def logits_of(directory: str | Path, tokens: Sequence[int], rounding: Rounding) -> torch.Tensor:
    """Logits after each token, float32 ``[len(tokens), vocabulary]``."""
    with torch.inference_mode():
        output = load(Path(directory), rounding)(
            input_ids=torch.tensor([list(tokens)]), use_cache=False
        )
    return output.logits[0].float()


def through_8_bits(latents: torch.Tensor) -> torch.Tensor:
    """Latents ``[..., rank]`` in their dtype as a cache of whole numbers gives them back."""
    tiles = latents.float().unflatten(-1, (-1, TILE_SIZE))
    scale = tiles.abs().amax(dim=-1, keepdim=True) / LARGEST
    return ((tiles / scale).round() * scale).flatten(-2).to(latents.dtype)


def chosen_by_8_bits(
    indexer: Any,
    key_scales: bool,
    hidden_states: torch.Tensor,
    q_resid: torch.Tensor,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    attention_mask: torch.Tensor,
    *_positions: torch.Tensor,
    use_cache: bool = False,
    past_key_values: Any = None,
) -> torch.Tensor:
    """``forward`` of the family's indexer with queries and keys of 8 bits: int64 ``[B, S, topk]``.

    Transformers 5.14.1 gives it the positions too, and the model's cache where 5.5.4 says whether
    the indexer keeps one.

    The paper's index score is the sum over heads of ``weight * relu(query . key)``; DeepSeek's
    inference code rotates both by a Hadamard matrix and stores them in 8 bits with a scale each.
    """
    if use_cache or past_key_values is not None:
        raise ValueError("the reference keeps no cache of the indexer's keys: use_cache=False")
    batch, length, _ = hidden_states.shape
    queries = indexer.wq_b(q_resid).view(batch, length, indexer.n_heads, indexer.head_dim)
    keys = indexer.k_norm(indexer.wk(hidden_states)).unsqueeze(2)
    rope = indexer.qk_rope_head_dim
    query, query_scale = in_8_bits(_rotary(queries, rope, position_embeddings))
    key, key_scale = in_8_bits(_rotary(keys, rope, position_embeddings))
    products = torch.einsum("bshd,btd->bsht", query, key[:, :, 0]).relu()
    weights = indexer.weights_proj(hidden_states).float() * query_scale
    scores = torch.einsum("bsht,bsh->bst", products, weights)
    if key_scales:
        scores = scores * key_scale[:, :, 0].unsqueeze(1)
    scores = scores + attention_mask.float()
    return scores.topk(min(indexer.index_topk, length), dim=-1).indices


def _rotary(
    states: torch.Tensor, rope: int, position_embeddings: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """The first ``rope`` features of ``[B, S, heads, D]`` turned in halves, as RoFormer's (34)."""
    cos, sin = (table.unsqueeze(2) for table in position_embeddings)
    turning, plain = states.split([rope, states.shape[-1] - rope], dim=-1)
    first, second = turning.chunk(2, dim=-1)
    turned = turning * cos + torch.cat((-second, first), dim=-1) * sin
    return torch.cat((turned, plain), dim=-1)


def in_8_bits(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotated rows as whole numbers in float32, and their scales, float16 values, without ``D``.

    Args:
        states: bfloat16 ``[..., D]``, ``D`` a power of two.
    """
    size = states.shape[-1]
    rotated = (states @ (hadamard(size) / size**0.5).to(states.dtype)).float()
    scale = rotated.abs().amax(dim=-1, keepdim=True) / LARGEST
    return (rotated / scale).round(), scale.half().float().squeeze(-1)


def hadamard(size: int) -> torch.Tensor:
    """Sylvester's matrix of 1 and -1 whose rows are orthogonal, float32 ``[size, size]``."""
    doubling = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
    return functools.reduce(torch.kron, [doubling] * (size.bit_length() - 1))
