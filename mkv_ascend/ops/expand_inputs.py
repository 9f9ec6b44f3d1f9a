# SPDX-License-Identifier: Apache-2.0
"""``expand_inputs``: the inputs of a proposal's first pass, and its slots, in one launch.

The draft first sees what the target just saw, without what was rejected, and the token that the
target sampled. A head on the target's hidden states (eagle, mtp) sees each token one place
earlier; a model of its own (draft_model) gets the sampled token as one row more; parallel drafting
adds rows for the tokens to be drafted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from mkv_ascend.ops.checks import INDEX_DTYPES, Checks
from mkv_ascend.ops.group_table import BLOCK_SIZE, PADDING_SLOT, slots_of
from mkv_ascend.ops.registration import CustomOp, Written, arguments_of, register

NAME = "expand_inputs"
checks = Checks(NAME)


class ExpandInputs(NamedTuple):
    """Arguments of ``expand_inputs``, in its order: R requests, T and T' rows of target and draft.

    Outputs may be views of larger buffers whose last dimension is dense.

    Attributes:
        token_ids: int32 or int64 [T], what the target was given.
        positions: int32 or int64 [T], of each token in its sequence; a request's tokens follow each
            other, so only its first is looked at. Below 2**31.
        next_token_ids: int32 or int64 [R].
        query_start_loc: int32 [R + 1], where each request begins in the input.
        num_requests: int32 [1], on the device; requests from there on are padding. A live request
            keeps one token or more.
        block_tables: G int32 [rows, columns], ids of kernel blocks; a list. Every live request has
            a row.
        group_table: int64 [G, 4], ``group_table(block_tables, block_sizes)``.
        sampled_per_request: rows whose logits are sampled, 1 or more.
        shift: whether the draft sees each token one place earlier.
        max_model_len: tokens that the draft can hold, 1 to 2**31 - 1.
        out_token_ids: out, int32 [T'].
        out_positions: out, int32 or int64 [T'].
        rejected_mask: out, int8 or bool [T'], 1 for rows of padding.
        masked_mask: out, int8 or bool [T'], 1 for rows to be drafted in parallel.
        sample_indices: out, int32 [R * sampled_per_request], rows to sample from, request by
            request; 0 for padding.
        out_query_start_loc: out, int32 [R + 1], where each request begins in the output; past the
            last live one, the end of its part.
        lengths: out, int32 [R], keys that the last row of the request's part may see, rejected
            rows counted; 0 for padding. May exceed ``max_model_len``.
        next_positions: out, int32 or int64 [R], position of each request's next token, as
            ``draft_plan`` takes it: not cut at ``max_model_len``; 0 for padding.
        slots: out, int32 [G, T']. A slot must fit int32.
        num_rejected: int32 or int64 [R], tokens rejected at the end of each request; None: none.
        rope_positions: int32 or int64 [axes, T], positions for rotary embedding where they are not
            those in the sequence (M-RoPE).
        out_rope_positions: out, int32 or int64 [axes, T'], given with ``rope_positions``.
        hidden_rows: out, int32 [T], the output row that takes each input row's hidden state; -1
            past the last live request. Identity for ``shift`` without parallel drafting.
        padding_token_id: token of padding rows.
        parallel_token_id: token of rows to be drafted in parallel.
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    next_token_ids: torch.Tensor
    query_start_loc: torch.Tensor
    num_requests: torch.Tensor
    block_tables: list[torch.Tensor]
    group_table: torch.Tensor
    sampled_per_request: int
    shift: bool
    max_model_len: int
    out_token_ids: Written
    out_positions: Written
    rejected_mask: Written
    masked_mask: Written
    sample_indices: Written
    out_query_start_loc: Written
    lengths: Written
    next_positions: Written
    slots: Written
    num_rejected: torch.Tensor | None = None
    rope_positions: torch.Tensor | None = None
    out_rope_positions: Written | None = None
    hidden_rows: Written | None = None
    padding_token_id: int = 0
    parallel_token_id: int = 0


def check(*arguments: Any) -> None:
    """Refuse wrong dtypes, shapes, strides and devices."""
    given = ExpandInputs(*arguments)
    sampled = given.sampled_per_request
    checks.require(sampled >= 1, f"sampled_per_request is {sampled}; it must be 1 or more")
    checks.model_length(given.max_model_len)
    checks.groups(given.block_tables, given.group_table)
    checks.require(
        (given.rope_positions is None) == (given.out_rope_positions is None),
        "rope_positions and out_rope_positions must be given together or not at all",
    )
    for name, (dtypes, shape) in _expected(given).items():
        tensor = getattr(given, name)
        if tensor is not None:
            checks.tensor(name, tensor, dtypes, shape)
    checks.one_device(given._asdict())


def _expected(
    given: ExpandInputs,
) -> dict[str, tuple[tuple[torch.dtype, ...], tuple[int | None, ...]]]:
    """Dtypes and shape of each argument that is a tensor."""
    tokens, requests = given.token_ids.shape[0], given.next_token_ids.shape[0]
    out_tokens, groups = given.out_token_ids.shape[0], len(given.block_tables)
    axes = None if given.rope_positions is None else given.rope_positions.shape[0]
    index, int32, mask = INDEX_DTYPES, (torch.int32,), (torch.int8, torch.bool)
    return {
        "token_ids": (index, (None,)),
        "positions": (index, (tokens,)),
        "next_token_ids": (index, (None,)),
        "query_start_loc": (int32, (requests + 1,)),
        "num_requests": (int32, (1,)),
        "out_token_ids": (int32, (None,)),
        "out_positions": (index, (out_tokens,)),
        "rejected_mask": (mask, (out_tokens,)),
        "masked_mask": (mask, (out_tokens,)),
        "sample_indices": (int32, (requests * given.sampled_per_request,)),
        "out_query_start_loc": (int32, (requests + 1,)),
        "lengths": (int32, (requests,)),
        "next_positions": (index, (requests,)),
        "slots": (int32, (groups, out_tokens)),
        "num_rejected": (index, (requests,)),
        "rope_positions": (index, (None, tokens)),
        "out_rope_positions": (index, (axes, out_tokens)),
        "hidden_rows": (int32, (tokens,)),
    }


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


def reference(*arguments: Any) -> None:
    """The op in plain torch operations: every output row looks up where it comes from."""
    given = ExpandInputs(*arguments)
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


def check_values(*arguments: Any) -> None:
    """Refuse requests without tokens or places, positions with gaps, and wrong block ids."""
    given = ExpandInputs(*arguments)
    live = checks.live(given, given.next_token_ids.shape[0])
    starts = checks.starts(given.query_start_loc, live, given.token_ids.shape[0])
    lengths = starts[1:] - starts[:-1]
    rejected = torch.zeros_like(lengths)
    if given.num_rejected is not None:
        rejected = given.num_rejected[:live].to(torch.int64)
    checks.none_wrong(
        "num_rejected", (rejected < 0) | (rejected >= lengths), rejected,
        "a live request keeps one token or more",
    )  # fmt: skip
    more = given.sampled_per_request - int(given.shift)
    rows = int(starts[-1]) + live * more
    checks.require(
        rows <= given.out_token_ids.shape[0],
        f"out_token_ids has {given.out_token_ids.shape[0]} rows; the requests need {rows}",
    )
    requests = torch.repeat_interleave(torch.arange(live), lengths)
    place = torch.arange(int(starts[-1])) - starts[requests]
    positions = given.positions[: int(starts[-1])].to(torch.int64)
    expected = positions[starts[requests]] + place if live else positions
    checks.none_wrong(
        "positions", (positions < 0) | (positions != expected), positions,
        "a request's tokens follow each other from 0 or more on",
    )  # fmt: skip
    kept_rows = lengths - rejected + more
    requests = torch.repeat_interleave(torch.arange(live), kept_rows)
    place = torch.arange(requests.shape[0]) - (kept_rows.cumsum(0) - kept_rows)[requests]
    moved = positions[starts[requests]] + place if live else place
    checks.block_ids(given, moved, requests, given.max_model_len)


_op = register(CustomOp(NAME, arguments_of(ExpandInputs), check, reference, check_values))


def expand_inputs(arguments: ExpandInputs) -> None:
    """Lay out a proposal's first pass: the target's rows become the draft's.

    Each live request's part of the output holds, in this order:

    - the tokens it keeps; in ``shift``, without the first;
    - its next token (what the target sampled);
    - ``sampled_per_request - 1`` tokens to be drafted in parallel, as ``parallel_token_id``;
    - a row of padding per rejected token.

    So it is ``sampled_per_request - shift`` rows longer than in the input. Row j of the part stands
    at the request's first position + j. Its rotary position is that of the request's input row j;
    past its kept tokens, counting on from the last.

    =============================  ========  ======================
    method                         shift     sampled_per_request
    =============================  ========  ======================
    eagle, eagle3, mtp             True      1
    draft_model                    False     1
    the same, parallel drafting    the same  number of draft tokens
    =============================  ========  ======================

    Rows at or past ``max_model_len`` keep their token, at position 0 with slot -1. Padding rows
    (rejected, or past the last live request's part) hold ``padding_token_id``, position 0, slot -1.
    What does not fit into T' rows is not written.

    Raises:
        ValueError: a wrong dtype, shape, stride or device, named by argument.
    """
    _op(*arguments)
