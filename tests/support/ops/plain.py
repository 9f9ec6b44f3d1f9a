# SPDX-License-Identifier: Apache-2.0
"""What the ops compute, in plain loops over Python integers."""

from __future__ import annotations

from dataclasses import dataclass

Table = list[list[int]]


def slot(table: Table, block_size: int, request: int, position: int, max_model_len: int) -> int:
    """Slot of one token, -1 where it has none."""
    if not 0 <= position < max_model_len or request >= len(table):
        return -1
    column = position // block_size
    if column >= len(table[request]):
        return -1
    return table[request][column] * block_size + position % block_size


def draft_plan(
    positions: list[int],
    num_requests: int,
    tables: list[Table],
    block_sizes: list[int],
    max_model_len: int,
    steps: int,
) -> tuple[list[list[int]], list[list[int]], list[list[list[int]]]]:
    """Positions [K - 1][R], lengths [K - 1][R] and slots [K - 1][G][R] of the later passes."""
    all_positions, all_lengths, all_slots = [], [], []
    for step in range(1, steps + 1):
        step_positions: list[int] = []
        lengths: list[int] = []
        slots: list[list[int]] = [[] for _ in tables]
        for request, first in enumerate(positions):
            position = first + step
            live, fits = request < num_requests, position < max_model_len
            step_positions.append(position if live and fits else 0)
            lengths.append((position + 1 if fits else 1) if live else 0)
            for group, table in enumerate(tables):
                found = slot(table, block_sizes[group], request, position, max_model_len)
                slots[group].append(found if live else -1)
        all_positions.append(step_positions)
        all_lengths.append(lengths)
        all_slots.append(slots)
    return all_positions, all_lengths, all_slots


@dataclass
class Expanded:
    """Outputs of ``expand_inputs``, empty lists to begin with."""

    token_ids: list[int]
    positions: list[int]
    rope_positions: list[list[int]]
    rejected: list[int]
    masked: list[int]
    slots: list[list[int]]
    sample_indices: list[int]
    hidden_rows: list[int]
    query_start_loc: list[int]
    lengths: list[int]
    next_positions: list[int]


@dataclass
class TargetBatch:
    """One list per request, of its tokens in the target's pass."""

    token_ids: list[list[int]]
    positions: list[list[int]]
    rope_positions: list[list[list[int]]]
    next_token_ids: list[int]
    rejected: list[int]


def expand_inputs(
    batch: TargetBatch,
    sampled: int,
    shift: bool,
    max_model_len: int,
    tables: list[Table],
    block_sizes: list[int],
    padding_token_id: int,
    parallel_token_id: int,
) -> Expanded:
    """The first pass of a proposal for live requests only; ``rope_positions`` by axis."""
    axes = len(batch.rope_positions)
    out = Expanded(
        [], [], [[] for _ in range(axes)], [], [], [[] for _ in tables], [], [], [], [], []
    )
    for request, tokens in enumerate(batch.token_ids):
        begin = len(out.token_ids)
        out.query_start_loc.append(begin)
        rejected = batch.rejected[request]
        kept = tokens[: len(tokens) - rejected]
        copied = kept[1:] if shift else kept
        new = [batch.next_token_ids[request]] + [parallel_token_id] * (sampled - 1)
        out.token_ids += copied + new + [padding_token_id] * rejected
        out.masked += [0] * (len(copied) + 1) + [1] * (sampled - 1) + [0] * rejected
        out.rejected += [0] * (len(copied) + sampled) + [1] * rejected
        out.sample_indices += [begin + len(copied) + step for step in range(sampled)]
        out.hidden_rows += [begin + place for place in range(len(tokens))]
        for place in range(len(copied) + sampled + rejected):
            padding = place >= len(copied) + sampled
            beyond = max(place - (len(kept) - 1), 0)
            position = batch.positions[request][min(place, len(kept) - 1)] + beyond
            fits = not padding and position < max_model_len
            out.positions.append(position if fits else 0)
            for axis in range(axes):
                turned = batch.rope_positions[axis][request][min(place, len(kept) - 1)] + beyond
                out.rope_positions[axis].append(turned if fits else 0)
            for group, table in enumerate(tables):
                found = slot(table, block_sizes[group], request, position, max_model_len)
                out.slots[group].append(-1 if padding else found)
        out.lengths.append(batch.positions[request][0] + len(out.token_ids) - begin)
        out.next_positions.append(batch.positions[request][0] + len(copied))
    out.query_start_loc.append(len(out.token_ids))
    return out
