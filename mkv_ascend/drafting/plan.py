# SPDX-License-Identifier: Apache-2.0
"""Positions, lengths and slots of a whole proposal, before its first pass runs.

After the first pass, positions advance by one per pass, whatever is sampled. So the contents of all
later passes' metadata are known at once. Two ops write them into buffers that live as long as the
draft, because a captured graph keeps their addresses.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mkv_ascend.drafting.context_shares import ContextShares
from mkv_ascend.drafting.draft import DraftBuffers, Event, LaterPasses, TargetOutput
from mkv_ascend.ops.draft_plan import DraftPlanArguments, draft_plan
from mkv_ascend.ops.expand_inputs import ExpandInputs, expand_inputs
from mkv_ascend.ops.group_table import group_table


@dataclass(frozen=True)
class Sizes:
    """Limits of one draft.

    Attributes:
        later_passes: passes after the first, K - 1; 0 where one pass drafts all tokens.
        max_requests: largest number of requests.
        max_tokens: largest number of rows of a pass.
        max_model_len: largest number of tokens of a sequence.
        sampled_per_request: tokens that the first pass drafts for each request.
        shift: whether the draft sees each token one place earlier (heads on hidden states).
        parallel_token_id: placeholder for a token that is drafted in parallel.
        writes_rejected: whether rejected rows of the first pass write to slots of their own;
            otherwise they write to no slot. Rejected rows are among the keys, though masked, and
            0 times NaN is NaN. So no slot may keep its old bits if other data may have used the
            block before.
        keeps_position: whether later passes stay at the position that the first is sampled from
            (heads that read the target's keys and have none).
    """

    later_passes: int
    max_requests: int
    max_tokens: int
    max_model_len: int
    sampled_per_request: int = 1
    shift: bool = False
    parallel_token_id: int = 0
    writes_rejected: bool = False
    keeps_position: bool = False

    def first_pass_rows(self, tokens: int, requests: int) -> int:
        """Rows of the first pass for ``tokens`` rows of the target."""
        return tokens + (self.sampled_per_request - int(self.shift)) * requests


class DraftPlan:
    """The plan's buffers on the device, and the two op calls that fill them.

    Args:
        sizes: limits of the draft.
        block_tables: the engine's own, int32 [max requests, columns] per KV group. Their addresses
            never change.
        block_sizes: tokens in a block of each table.
        copied: the event by which the host waits for lengths; None if copies are synchronous.
        shares: how ranks share each sequence's keys; None if each rank keeps all of them.

    ``host_reads``: how often the host has waited for lengths.
    """

    def __init__(
        self,
        sizes: Sizes,
        block_tables: Sequence[torch.Tensor],
        block_sizes: Sequence[int],
        copied: Event | None = None,
        shares: ContextShares | None = None,
    ) -> None:
        self.sizes = sizes
        self._copied, self.shares = copied, shares
        self.host_reads = 0
        self.block_tables = list(block_tables)
        self._own_block_sizes = tuple(block_sizes)
        if shares is not None:
            block_sizes = [shares.shared_block_size(size) for size in block_sizes]
        self._block_sizes = tuple(block_sizes)
        self._group_table = group_table(block_tables, block_sizes)
        self._read_tables = [
            self._with_room(table, size)
            for table, size in zip(self.block_tables, self._block_sizes, strict=True)
        ]
        passes, rows, groups = sizes.later_passes, sizes.max_tokens, len(self.block_tables)
        device = block_tables[0].device
        integers = functools.partial(torch.zeros, dtype=torch.int32, device=device)
        # Flat, so that the plan for any number of rows is contiguous and its address is fixed.
        self._positions = integers(passes * rows)
        self._lengths = integers(passes * rows)
        self._slots = integers(passes * groups * rows)
        pinned = device.type != "cpu"
        self._host_lengths = torch.zeros(
            passes * rows, dtype=torch.int32, device="cpu", pin_memory=pinned
        )
        self.first_slots = integers(groups, rows)
        self.first_lengths = integers(sizes.max_requests)
        self.first_query_start_loc = integers(sizes.max_requests + 1)
        self.next_positions = integers(rows)
        self.hidden_rows = integers(rows)
        self.rejected_mask = torch.zeros(rows, dtype=torch.bool, device=device)
        self.masked_mask = torch.zeros(rows, dtype=torch.bool, device=device)
        # A view of these is a count on the device that needs no copy at run time.
        self.counts = torch.arange(sizes.max_requests + 1, dtype=torch.int32, device=device)
        self.host_counts = torch.arange(sizes.max_requests + 1, dtype=torch.int32, device="cpu")
        self.row_numbers = torch.arange(rows, dtype=torch.int32, device=device)
        self.later_passes = functools.lru_cache(self._later_passes)
        self.tables = functools.lru_cache(self._tables)

    def _with_room(self, table: torch.Tensor, block_size: int) -> torch.Tensor:
        """The block table that layers read: the engine's, or a copy of it with more columns.

        Rows that are drafted in parallel may lie behind the longest sequence, where the engine's
        table ends. They have no slots and nobody reads what they say, but operators are told of all
        rows of a request, and take no length that its table does not hold.
        """
        more = self.sizes.sampled_per_request - 1
        if not more:
            return table
        return table.new_zeros((table.shape[0], table.shape[1] + -(-more // block_size)))

    def _copy_tables(self, requests: int) -> None:
        """Bring the engine's current rows into the tables that layers read."""
        for own, table in zip(self._read_tables, self.block_tables, strict=True):
            if own is not table:
                own[:requests, : table.shape[1]] = table[:requests]

    def expand(self, target: TargetOutput, buffers: DraftBuffers, padded_rows: int = 0) -> int:
        """Lay out the first pass in one launch; return its number of rows.

        Padding rows fill it up to ``padded_rows``. They write to no slot.

        Writes the draft's buffers, ``first_slots`` [G, rows], ``first_lengths`` [B],
        ``first_query_start_loc`` [B + 1] and ``next_positions`` [B].

        Raises:
            ValueError: the pass has more rows than the engine was started for.
        """
        sizes = self.sizes
        requests, tokens = target.requests, target.token_ids.shape[0]
        rows = sizes.first_pass_rows(tokens, requests)
        if rows > sizes.max_tokens:
            raise ValueError(
                f"the draft's first pass has {rows} rows for {tokens} tokens of {requests} "
                f"requests; the engine was started for {sizes.max_tokens}. Raise "
                "max_num_batched_tokens or lower max_num_seqs."
            )
        rows = max(rows, padded_rows)
        out_rope = buffers.rope_positions
        arguments = ExpandInputs(
            token_ids=target.token_ids,
            positions=target.positions,
            next_token_ids=target.next_token_ids,
            query_start_loc=target.query_start_loc,
            num_requests=self.counts[requests : requests + 1],
            block_tables=self.block_tables,
            group_table=self._group_table,
            sampled_per_request=sizes.sampled_per_request,
            shift=sizes.shift,
            max_model_len=sizes.max_model_len,
            out_token_ids=buffers.token_ids[:rows],
            out_positions=buffers.positions[:rows],
            rejected_mask=self.rejected_mask[:rows],
            masked_mask=self.masked_mask[:rows],
            sample_indices=buffers.sample_rows[: requests * sizes.sampled_per_request],
            out_query_start_loc=self.first_query_start_loc[: requests + 1],
            lengths=self.first_lengths[:requests],
            next_positions=self.next_positions[:requests],
            slots=self.first_slots[:, :rows],
            num_rejected=target.num_rejected,
            rope_positions=target.rope_positions,
            out_rope_positions=None if out_rope is None else out_rope[:, :rows],
            hidden_rows=self.hidden_rows[:tokens] if sizes.sampled_per_request > 1 else None,
            parallel_token_id=sizes.parallel_token_id,
        )
        expand_inputs(arguments)
        self._copy_tables(requests)
        if sizes.writes_rejected:
            self._write_slots_of_rejected(requests, rows)
        self._keep_own_slots(self.first_slots[:, :rows])
        return rows

    def lay_out_padding(self, buffers: DraftBuffers, rows: int, requests: int) -> None:
        """Lay out a first pass of padding alone, of a graph for ``requests`` requests."""
        buffers.token_ids[:rows].zero_()
        buffers.positions[:rows].zero_()
        if buffers.rope_positions is not None:
            buffers.rope_positions[:, :rows].zero_()
        buffers.sample_rows[: requests * self.sizes.sampled_per_request].zero_()
        self.first_slots[:, :rows].fill_(-1)
        self.first_lengths[:requests].zero_()

    def pad_first_pass(self, requests: int, padded_requests: int) -> None:
        """Give padding requests length 0, for attention that reads lengths on the device."""
        self.first_lengths[requests:padded_requests].zero_()

    def _write_slots_of_rejected(self, requests: int, rows: int) -> None:
        """Give rejected rows of live requests the slots behind the rows that are kept.

        These slots lie in blocks that the target's pass was given. The next rows with these
        positions overwrite them.
        """
        starts, row = self.first_query_start_loc[: requests + 1], self.row_numbers[:rows]
        request = torch.bucketize(row, starts[1:], right=True)
        live = self.rejected_mask[:rows] & (request < requests)
        request.clamp_(max=requests - 1)
        behind = self.first_lengths[request] - starts[request + 1]
        position = behind + row
        live &= position < self.sizes.max_model_len
        for slots, table, size in zip(
            self.first_slots, self.block_tables, self._block_sizes, strict=True
        ):
            # Rows that are kept may come out before the sequence, and are not written below.
            column = (position // size).clamp_(0, table.shape[1] - 1)
            own = table[request, column] * size + position % size
            fits = live & (position < table.shape[1] * size)
            slots[:rows] = torch.where(fits, own, slots[:rows])

    def slots(self, rows: int) -> tuple[torch.Tensor, ...]:
        """The first pass's slots per KV group, int32 [rows] each."""
        return tuple(self.first_slots[:, :rows])

    def plan_later(self, rows: int, requests: int) -> LaterPasses:
        """Plan all later passes from ``next_positions`` in one launch.

        Rows from ``requests`` on are padding, with position 0, length 0 and slot -1.
        """
        later = self.later_passes(rows, requests)
        first = self.next_positions[:rows]
        if self.sizes.keeps_position:
            first = first - 1
        arguments = DraftPlanArguments(
            first,
            self.counts[requests : requests + 1],
            self.block_tables,
            self._group_table,
            self.sizes.max_model_len,
            later.all_positions,
            later.all_lengths,
            later.all_slots,
        )
        draft_plan(arguments)
        if self.sizes.keeps_position:
            for planned in (later.all_positions, later.all_lengths, later.all_slots):
                planned[1:] = planned[:1].clone()
        self._keep_own_slots(later.all_slots)
        return later

    def _keep_own_slots(self, slots: torch.Tensor) -> None:
        """Leave this rank's share of slots [..., groups, rows], where ranks share sequences."""
        if self.shares is not None:
            for index, size in enumerate(self._own_block_sizes):
                slots[..., index, :] = self.shares.own_slots(slots[..., index, :], size)

    def copy_lengths(self, later: LaterPasses) -> None:
        """Start to copy the lengths of later passes to the host."""
        later.host_lengths.copy_(later.all_lengths, non_blocking=True)
        if self._copied is not None:
            self._copied.record()

    def wait_for_lengths(self) -> None:
        """Wait until the lengths are on the host. All earlier launches have then finished, too."""
        self.host_reads += 1
        if self._copied is not None:
            self._copied.synchronize()

    def _later_passes(self, rows: int, requests: int) -> LaterPasses:
        passes, groups = self.sizes.later_passes, len(self.block_tables)
        positions = self._positions[: passes * rows].view(passes, rows)
        lengths = self._lengths[: passes * rows].view(passes, rows)
        slots = self._slots[: passes * groups * rows].view(passes, groups, rows)
        return LaterPasses(
            all_positions=positions,
            all_lengths=lengths,
            all_slots=slots,
            host_lengths=self._host_lengths[: passes * rows].view(passes, rows),
            positions=tuple(positions),
            request_positions=tuple(positions[:, :requests]),
            lengths=tuple(lengths[:, :requests]),
            slots=tuple(tuple(pass_slots) for pass_slots in slots[:, :, :requests]),
            tables=self.tables(requests),
        )

    def _tables(self, requests: int) -> tuple[torch.Tensor, ...]:
        """The first ``requests`` rows that layers read, int32 [requests, columns] per group."""
        return tuple(table[:requests] for table in self._read_tables)
