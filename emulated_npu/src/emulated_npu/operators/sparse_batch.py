# SPDX-License-Identifier: Apache-2.0
"""Whose queries and keys are where in a call of a sparse attention operator.

Source: op-plugin docs of npu_lightning_indexer and npu_sparse_flash_attention, which share layouts,
lengths and block tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from emulated_npu.operators.attention_lengths import check_cumulative
from emulated_npu.operators.attention_paging import gather_tokens
from emulated_npu.operators.requirements import (
    require,
    require_contiguous,
    require_dtype,
    require_multiple,
    require_range,
    require_rank,
    require_shape,
)

PAGED = "PA_BSND"
PACKED = "TND"
UNLIMITED = 2**63 - 1  # the only pre_tokens and next_tokens that these operators take
CAUSAL = 3  # sparse_mode: the last query is at the last key


@dataclass(frozen=True)
class SparseBatch:
    """Layouts and lengths of one call.

    query_lengths: cumulative in TND, else each request's own; None takes the whole axis.
    key_lengths: cumulative in TND, else each request's own.
    block_table: (requests, columns), for layout_key PA_BSND.
    """

    layout_query: str
    layout_key: str
    query_lengths: torch.Tensor | None
    key_lengths: torch.Tensor | None
    block_table: torch.Tensor | None

    def query_rows(self, query: torch.Tensor) -> Iterator[slice]:
        """For each request its rows of ``query`` with the axes in front of heads made one."""
        if self.layout_query == PACKED:
            start = 0
            for end in _integers(self.query_lengths) or []:
                yield slice(start, end)
                start = end
            return
        batch_size, width = query.shape[:2]
        lengths = _integers(self.query_lengths) or [width] * batch_size
        for index, length in enumerate(lengths):
            yield slice(index * width, index * width + length)

    def key_length(self, key: torch.Tensor, index: int) -> int:
        """Tokens of request ``index`` that ``key`` holds."""
        lengths = _integers(self.key_lengths)
        if lengths is None:
            return key.shape[1]
        if self.layout_key == PACKED:
            return lengths[index] - (lengths[index - 1] if index else 0)
        return lengths[index]

    def keys(self, key: torch.Tensor, index: int) -> torch.Tensor:
        """Keys of request ``index``, (key length, features) for the one head of keys."""
        length = self.key_length(key, index)
        if self.block_table is not None:
            rows = gather_tokens(key, self.block_table[index], length)
        elif self.layout_key == PACKED:
            end = (_integers(self.key_lengths) or [])[index]
            rows = key[end - length : end]
        else:
            rows = key[index, :length]
        return rows.flatten(1)

    def visible(self, mode: int, num_queries: int, num_keys: int) -> torch.Tensor:
        """Boolean (queries, keys), true where a query may see a key."""
        everything = torch.ones(num_queries, num_keys, dtype=torch.bool)
        return everything.tril(num_keys - num_queries) if mode == CAUSAL else everything


def _integers(values: torch.Tensor | None) -> list[int] | None:
    return None if values is None else [int(value) for value in values.tolist()]


def check_batch(batch: SparseBatch, query: torch.Tensor, key: torch.Tensor) -> None:
    """Refuse layouts, lengths and block tables that are not documented."""
    _check_layouts(batch, query, key)
    _check_query_lengths(batch, query)
    _check_key_lengths(batch, key)
    if batch.layout_key == PAGED:
        _check_pages(batch, key)


def _check_layouts(batch: SparseBatch, query: torch.Tensor, key: torch.Tensor) -> None:
    require(
        batch.layout_query in ("BSND", PACKED),
        f"the layout of query is {batch.layout_query!r}; it must be BSND or TND",
    )
    require(
        batch.layout_key in (PAGED, batch.layout_query),
        f"the layout of key is {batch.layout_key!r}; it must be PA_BSND, or that of query "
        f"({batch.layout_query})",
    )
    require_rank("query", query, 3 if batch.layout_query == PACKED else 4)
    require_rank("key", key, 3 if batch.layout_key == PACKED else 4)
    require(key.shape[-2] == 1, f"key has {key.shape[-2]} heads; it must have 1")
    require(
        (batch.block_table is not None) == (batch.layout_key == PAGED),
        "a block_table is given with PA_BSND, and with no other layout of key",
    )
    for name, tensor in (("query", query), ("key", key)):
        require(tensor.numel() > 0, f"{name} is empty")


def _check_query_lengths(batch: SparseBatch, query: torch.Tensor) -> None:
    lengths = batch.query_lengths
    if lengths is None:
        require(batch.layout_query != PACKED, "layout TND needs the query lengths; they are None")
        return
    require_dtype("the query lengths", lengths, (torch.int32,))
    require_rank("the query lengths", lengths, 1)
    values = lengths.tolist()
    if batch.layout_query != PACKED:
        require_shape("the query lengths", lengths, (query.shape[0],))
        for value in values:
            require_range("a query length", value, 0, query.shape[1])
        return
    check_cumulative("query lengths", values, None)
    # vllm-ascend pads query to a size of its graphs; the lengths end before.
    require(
        bool(values) and values[-1] <= query.shape[0],
        f"the query lengths {values} end past the {query.shape[0]} queries",
    )


def _check_key_lengths(batch: SparseBatch, key: torch.Tensor) -> None:
    lengths = batch.key_lengths
    if lengths is None:
        require(
            batch.layout_key == "BSND",
            f"layout {batch.layout_key} needs the key lengths; they are None",
        )
        return
    require_dtype("the key lengths", lengths, (torch.int32,))
    require_rank("the key lengths", lengths, 1)
    values = lengths.tolist()
    if batch.query_lengths is not None:
        require_shape("the key lengths", lengths, batch.query_lengths.shape)
    if batch.layout_key == PACKED:
        check_cumulative("key lengths", values, key.shape[0])
    longest = key.shape[1] if batch.layout_key == "BSND" else UNLIMITED
    for value in values:
        require_range("a key length", value, 0, longest)


def _check_pages(batch: SparseBatch, key: torch.Tensor) -> None:
    table, lengths = batch.block_table, batch.key_lengths
    assert table is not None
    assert lengths is not None
    block_size = key.shape[1]
    require_dtype("block_table", table, (torch.int32,))
    require_rank("block_table", table, 2)
    require_contiguous("block_table", table)
    require(
        table.shape[0] == lengths.shape[0],
        f"block_table has {table.shape[0]} rows for {lengths.shape[0]} key lengths",
    )
    require_range("the block size of key", block_size, 16, 1024)
    require_multiple("the block size of key", block_size, 16)
    longest = int(lengths.max())
    require(
        longest <= table.shape[1] * block_size,
        f"the longest key length is {longest}; block_table holds {table.shape[1]} blocks of "
        f"{block_size} tokens",
    )
