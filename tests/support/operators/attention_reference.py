# SPDX-License-Identifier: Apache-2.0
"""Attention in float64 with plain loops over rows, heads and keys: the judge of the kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Visible = Callable[[int, int], bool]


def everything(_row: int, _column: int) -> bool:
    return True


def causal(query_length: int, kv_length: int) -> Visible:
    """The last query row is at the last key."""
    return lambda row, column: column <= row + kv_length - query_length


def window(query_length: int, kv_length: int, before: int, after: int = 0) -> Visible:
    """A row keeps `before` keys before its own, its own, and `after` keys after it."""

    def visible(row: int, column: int) -> bool:
        position = row + kv_length - query_length
        return position - before <= column <= position + after

    return visible


def reference_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    visible: Visible = everything,
    sink: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(S, N, D), (K, G, D), (K, G, E) -> output (S, N, E) and log-sum-exp (S, N), float64."""
    queries, keys, values = (tensor.double().numpy() for tensor in (query, key, value))
    num_rows, num_heads, _ = queries.shape
    num_keys, num_kv_heads, value_size = values.shape
    output = np.zeros((num_rows, num_heads, value_size))
    log_sum = np.full((num_rows, num_heads), -math.inf)
    for row in range(num_rows):
        for head in range(num_heads):
            kv_head = head * num_kv_heads // num_heads
            scores: dict[int, float] = {}
            for column in range(num_keys):
                if visible(row, column):
                    product = float(np.dot(queries[row, head], keys[column, kv_head]))
                    scores[column] = product * scale
            logits = list(scores.values()) + ([float(sink[head])] if sink is not None else [])
            if not logits:
                continue
            highest = max(logits)
            total = sum(math.exp(logit - highest) for logit in logits)
            log_sum[row, head] = highest + math.log(total)
            for column, score in scores.items():
                output[row, head] += math.exp(score - highest) / total * values[column, kv_head]
    return torch.from_numpy(output), torch.from_numpy(log_sum)


def assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected, rtol=1e-4, atol=1e-5)


def in_dtype(value: Any, dtype: torch.dtype) -> Any:
    """Float tensors of an argument, lists included, in another dtype."""
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.is_floating_point() else value
    if isinstance(value, list):
        return [in_dtype(item, dtype) for item in value]
    return value


def checked_in_float32(operator: Any, *args: Any, dtype: torch.dtype, **kwargs: Any) -> Any:
    """Pass the check in the documented `dtype`, then compute in float32, where a comparison with
    float64 can be tight."""
    operator.run_check(
        *(in_dtype(value, dtype) for value in args),
        **{name: in_dtype(value, dtype) for name, value in kwargs.items()},
    )
    return operator.kernel(*args, **kwargs)


class PagedCache:
    """Keys and values of some requests, in blocks that are in random order."""

    def __init__(
        self,
        generator: torch.Generator,
        kv_lengths: Sequence[int],
        num_heads: int,
        head_size: int,
        block_size: int,
    ) -> None:
        columns = max(1, -(-max(kv_lengths) // block_size))
        num_blocks = columns * len(kv_lengths) + 2
        # Blocks that no request uses hold garbage that would show.
        self.cache = torch.full((num_blocks, block_size, num_heads, head_size), 1e4)
        order = torch.randperm(num_blocks, generator=generator)[: columns * len(kv_lengths)]
        self.table = order.view(len(kv_lengths), columns).to(torch.int32)
        self.tokens = []
        for row, length in zip(self.table.tolist(), kv_lengths, strict=True):
            tokens = torch.randn(length, num_heads, head_size, generator=generator)
            for position in range(length):
                block = row[position // block_size]
                self.cache[block, position % block_size] = tokens[position]
            self.tokens.append(tokens)

    def same_places(self, generator: torch.Generator, head_size: int) -> PagedCache:
        """Another cache with the same block table and lengths, for values or rope parts."""
        other = object.__new__(PagedCache)
        blocks, block_size, num_heads, _ = self.cache.shape
        other.table = self.table
        other.cache = torch.full((blocks, block_size, num_heads, head_size), -1e4)
        other.tokens = []
        for row, kept in zip(self.table.tolist(), self.tokens, strict=True):
            tokens = torch.randn(len(kept), num_heads, head_size, generator=generator)
            for position in range(len(kept)):
                block = row[position // block_size]
                other.cache[block, position % block_size] = tokens[position]
            other.tokens.append(tokens)
        return other

    def flat(self) -> torch.Tensor:
        """(blocks, block size, heads * head size)."""
        return self.cache.flatten(2)

    def heads_first(self) -> torch.Tensor:
        """(blocks, heads, block size, head size)."""
        return self.cache.transpose(1, 2).contiguous()

    def fractal(self) -> torch.Tensor:
        """NZ: (blocks, heads, head size / 16, block size, 16)."""
        return self.cache.unflatten(3, (-1, 16)).permute(0, 2, 3, 1, 4).contiguous()
