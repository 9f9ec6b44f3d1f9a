# SPDX-License-Identifier: Apache-2.0
"""The reference of ``expand_inputs``: every output row looks up where it comes from."""

from __future__ import annotations

import torch

from mkv_ascend.ops.arguments import ExpandInputs
from mkv_ascend.ops.group_table import BLOCK_SIZE, PADDING_SLOT, slots_of


class Expansion:
    """Where each row of the output comes from; all tensors int64 or bool, on the device.

    A live request has ``kept`` tokens, of which it shows ``copied`` (all, or all but the first with
    shifted ids), its next token, ``sampled - 1`` tokens to be drafted in parallel, and one row of
    padding per rejected token.
    """

    def __init__(self, given: ExpandInputs) -> None:
        self.shift = int(given.shift)
        more = given.sampled_per_request - self.shift
        bounds = given.query_start_loc.to(torch.int64)
        num_rows = bounds.shape[0] - 1
        device = bounds.device
        rows = torch.arange(num_rows + 1, device=device)
        last = given.num_requests.to(torch.int64).clamp(0, num_rows)
        self.live = rows[:-1] < last
        # What bounds past the last live request hold is not defined: they count as its end.
        self.starts = torch.where(rows <= last, bounds, bounds[last])
        self.out_starts = self.starts + rows.minimum(last) * more
        length = self.starts[1:] - self.starts[:-1]
        self.kept = length if given.num_rejected is None else length - given.num_rejected
        self.copied = self.kept - self.shift
        self.out_length = length + more

        out_rows = torch.arange(given.out_token_ids.shape[0], device=device)
        filled = out_rows < self.out_starts[-1]
        # Of the requests that start at or before a row, the last live one holds it.
        self.request = ((out_rows[:, None] >= self.out_starts[:-1]) & self.live).sum(1) - 1
        self.request = self.request.clamp(min=0)
        self.place = out_rows - self.out_starts[self.request]
        copied = self.copied[self.request]
        self.is_copied = filled & (self.place < copied)
        self.is_next = filled & (self.place == copied)
        self.is_token = filled & (self.place < copied + given.sampled_per_request)
        self.is_masked = self.is_token & (self.place > copied)

    def first_positions(self, positions: torch.Tensor) -> torch.Tensor:
        """Position [R] of each request's first token."""
        return positions[self.starts[:-1].clamp(0, positions.shape[0] - 1)].to(torch.int64)

    def rope_positions(self, positions: torch.Tensor) -> torch.Tensor:
        """[axes, T']: those of the input's rows, then counting on from the last."""
        last = self.kept[self.request] - 1
        source = self.starts[self.request] + self.place.minimum(last)
        beyond = (self.place - last).clamp(min=0)
        source = source.clamp(0, positions.shape[-1] - 1)
        return positions[..., source].to(torch.int64) + beyond


def write(given: ExpandInputs) -> None:
    """Fill the outputs among the arguments."""
    if given.token_ids.shape[0] == 0 or given.next_token_ids.shape[0] == 0:
        _write_padding(given)
        return
    rows = Expansion(given)
    given.rejected_mask.copy_(~rows.is_token)
    given.masked_mask.copy_(rows.is_masked)
    given.out_query_start_loc.copy_(rows.out_starts)
    _write_tokens(rows, given)
    _write_positions(rows, given)
    _write_requests(rows, given)
    if given.hidden_rows is not None:
        _write_hidden_rows(rows, given.hidden_rows)


def _write_padding(given: ExpandInputs) -> None:
    given.out_token_ids.fill_(given.padding_token_id)
    given.rejected_mask.fill_(1)
    given.slots.fill_(PADDING_SLOT)
    for zero in (
        given.out_positions, given.out_rope_positions, given.masked_mask, given.sample_indices,
        given.out_query_start_loc, given.lengths, given.next_positions,
    ):  # fmt: skip
        if zero is not None:
            zero.zero_()
    if given.hidden_rows is not None:
        given.hidden_rows.fill_(-1)


def _write_tokens(rows: Expansion, given: ExpandInputs) -> None:
    source = rows.starts[rows.request] + rows.shift + rows.place
    ids = given.token_ids[source.clamp(0, given.token_ids.shape[0] - 1)].to(torch.int32)
    ids = torch.where(rows.is_copied, ids, given.padding_token_id)
    ids = torch.where(rows.is_next, given.next_token_ids[rows.request].to(torch.int32), ids)
    given.out_token_ids.copy_(torch.where(rows.is_masked, given.parallel_token_id, ids))


def _write_positions(rows: Expansion, given: ExpandInputs) -> None:
    moved = rows.first_positions(given.positions)[rows.request] + rows.place
    fits = rows.is_token & (moved >= 0) & (moved < given.max_model_len)
    kept = torch.where(fits, moved, 0)
    given.out_positions.copy_(kept)
    if given.rope_positions is not None and given.out_rope_positions is not None:
        given.out_rope_positions.copy_(
            torch.where(fits, rows.rope_positions(given.rope_positions), 0)
        )
    for group, table in enumerate(given.block_tables):
        block_size = given.group_table[group, BLOCK_SIZE]
        given.slots[group].copy_(slots_of(kept, rows.request, fits, table, block_size))


def _write_requests(rows: Expansion, given: ExpandInputs) -> None:
    first_sampled = rows.out_starts[:-1] + rows.copied
    sampled = torch.arange(given.sampled_per_request, device=first_sampled.device)
    indices = torch.where(rows.live[:, None], first_sampled[:, None] + sampled, 0)
    given.sample_indices.copy_(indices.flatten())
    begin = rows.first_positions(given.positions)
    given.lengths.copy_(torch.where(rows.live, begin + rows.out_length, 0))
    given.next_positions.copy_(torch.where(rows.live, begin + rows.copied, 0))


def _write_hidden_rows(rows: Expansion, hidden_rows: torch.Tensor) -> None:
    inputs = torch.arange(hidden_rows.shape[0], device=hidden_rows.device)
    request = ((inputs[:, None] >= rows.starts[:-1]) & rows.live).sum(1) - 1
    request = request.clamp(min=0)
    moved = rows.out_starts[request] + inputs - rows.starts[request]
    hidden_rows.copy_(torch.where(inputs < rows.starts[-1], moved, -1))
