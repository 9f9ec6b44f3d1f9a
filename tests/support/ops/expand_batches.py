# SPDX-License-Identifier: Apache-2.0
"""Batches for ``expand_inputs``, as the op takes them, and what it must make of them."""

from __future__ import annotations

import torch

from mkv_ascend.ops.expand_inputs import ExpandInputs
from tests.support.ops import plain
from tests.support.ops.batches import JUNK, Groups, junk

PADDING_TOKEN, PARALLEL_TOKEN = 5, 6


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def random_batch(
    generator: torch.Generator,
    lengths: list[int],
    rejections: list[int],
    max_model_len: int,
    axes: int = 3,
) -> plain.TargetBatch:
    def numbers(count: int, high: int) -> list[int]:
        drawn: list[int] = torch.randint(0, high, (count,), generator=generator).tolist()
        return drawn

    firsts = numbers(len(lengths), max_model_len + 2)
    return plain.TargetBatch(
        token_ids=[numbers(length, 9999) for length in lengths],
        positions=[
            list(range(at, at + length)) for at, length in zip(firsts, lengths, strict=True)
        ],
        rope_positions=[[numbers(length, 9999) for length in lengths] for _ in range(axes)],
        next_token_ids=numbers(len(lengths), 9999),
        rejected=rejections,
    )


def flat(lists: list[list[int]]) -> list[int]:
    return [item for part in lists for item in part]


def as_arguments(
    batch: plain.TargetBatch,
    made: Groups,
    sampled: int,
    shift: bool,
    max_model_len: int,
    *,
    padding_requests: int = 0,
    padding_rows: int = 0,
    rope: bool = True,
    dtype: torch.dtype = torch.int32,
    out_dtype: torch.dtype = torch.int32,
) -> ExpandInputs:
    """The op's arguments for a batch, with junk past its end and in all outputs."""
    live = len(batch.token_ids)
    requests = live + padding_requests
    begins = [0]
    for tokens in batch.token_ids:
        begins.append(begins[-1] + len(tokens))
    tail, total = [JUNK] * padding_requests, begins[-1]
    out_tokens = total + live * (sampled - shift) + padding_rows
    ids = torch.tensor(flat(batch.token_ids) + [JUNK] * padding_rows, dtype=dtype)
    positions = torch.tensor(flat(batch.positions) + [JUNK] * padding_rows, dtype=dtype)
    turned = [flat(axis) + [JUNK] * padding_rows for axis in batch.rope_positions]
    return ExpandInputs(
        ids, positions, torch.tensor(batch.next_token_ids + tail, dtype=dtype),
        int32(begins + tail), int32([live]), made.tables, made.table, sampled, shift,
        max_model_len, junk((out_tokens,)), junk((out_tokens,), out_dtype),
        junk((out_tokens,), torch.int8), junk((out_tokens,), torch.int8),
        junk((requests * sampled,)), junk((requests + 1,)), junk((requests,)),
        junk((requests,), out_dtype), junk((len(made.tables), out_tokens)),
        num_rejected=torch.tensor(batch.rejected + tail, dtype=dtype),
        rope_positions=torch.tensor(turned, dtype=dtype) if rope else None,
        out_rope_positions=junk((len(turned), out_tokens), out_dtype) if rope else None,
        hidden_rows=junk((ids.shape[0],)), padding_token_id=PADDING_TOKEN,
        parallel_token_id=PARALLEL_TOKEN,
    )  # fmt: skip


def expect(given: ExpandInputs, wanted: plain.Expanded) -> None:
    """Every output, live part and padding."""

    def same(name: str, live: list[int], filler: int) -> None:
        got = getattr(given, name).tolist()
        assert got == live + [filler] * (len(got) - len(live)), name

    same("out_token_ids", wanted.token_ids, PADDING_TOKEN)
    same("out_positions", wanted.positions, 0)
    same("rejected_mask", wanted.rejected, 1)
    same("masked_mask", wanted.masked, 0)
    same("sample_indices", wanted.sample_indices, 0)
    same("out_query_start_loc", wanted.query_start_loc, wanted.query_start_loc[-1])
    same("lengths", wanted.lengths, 0)
    same("next_positions", wanted.next_positions, 0)
    same("hidden_rows", wanted.hidden_rows, -1)
    for group, slots in enumerate(wanted.slots):
        got = given.slots[group].tolist()
        assert got == slots + [-1] * (len(got) - len(slots))
    if given.out_rope_positions is not None:
        for got, row in zip(given.out_rope_positions.tolist(), wanted.rope_positions, strict=True):
            assert got == row + [0] * (len(got) - len(row))
