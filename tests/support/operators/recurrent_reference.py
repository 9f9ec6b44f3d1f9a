# SPDX-License-Identifier: Apache-2.0
"""Layers with a recurrent state, in plain loops in float64; and random inputs for them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from tests.support.operators.operator_testing import random_tensor

BF16, F32 = torch.bfloat16, torch.float32


def int32(values: Iterable[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def convolved(
    tokens: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, silu: bool
) -> torch.Tensor:
    """The outputs of tokens[width - 1:], each from itself and the width - 1 before it."""
    width, channels = weight.shape
    result = torch.zeros(len(tokens) - width + 1, channels, dtype=torch.float64)
    for t in range(len(result)):
        for c in range(channels):
            total = 0.0 if bias is None else float(bias[c])
            for i in range(width):
                total += float(weight[i, c]) * float(tokens[t + i][c])
            result[t, c] = total / (1 + math.exp(-total)) if silu else total
    return result


def recurrence(
    state: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    log_decay: torch.Tensor,
    beta: torch.Tensor,
    scale: float,
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """States after each token and outputs, head by head and element by element; float64."""
    heads, shared_by = value.shape[1], value.shape[1] // query.shape[1]
    state, states, outputs = state.double().clone(), [], []
    for t in range(len(value)):
        rows = []
        for h in range(heads):
            q, k = query[t, h // shared_by].double() * scale, key[t, h // shared_by].double()
            decayed = state[h] * math.exp(float(log_decay[t, h]))
            error = (value[t, h].double() - decayed @ k) * float(beta[t, h])
            state[h] = decayed + torch.outer(error, k)
            rows.append(state[h] @ q)
        states.append(state.clone())
        outputs.append(torch.stack(rows))
    return states, torch.stack(outputs)


def layer_inputs(
    seed: int,
    tokens: int,
    dtype: torch.dtype = BF16,
    key_heads: int = 1,
    heads: int = 2,
    key_size: int = 4,
    value_size: int = 3,
) -> dict[str, torch.Tensor]:
    """query, key, value, g (log of the decay) and beta of a gated delta rule."""
    shapes = {
        "query": (tokens, key_heads, key_size),
        "key": (tokens, key_heads, key_size),
        "value": (tokens, heads, value_size),
    }
    inputs = {
        name: random_tensor(seed + len(name), shape, dtype, 1) for name, shape in shapes.items()
    }
    inputs["g"] = -random_tensor(seed + 7, (tokens, heads), spread=0.5).abs()
    inputs["beta"] = random_tensor(seed + 8, (tokens, heads), spread=1).abs().to(dtype)
    return inputs
