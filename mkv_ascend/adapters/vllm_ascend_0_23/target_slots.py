# SPDX-License-Identifier: Apache-2.0
"""Slots of the target's pass in one launch, for the target's layers only.

In the target's pass vllm-ascend 0.23.0 computes slots for every KV group, a kernel launch each.
That includes the draft's groups, although the draft computes its own and nothing else reads them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch

from mkv_ascend.adapters.common.target_pass import AttentionGroups
from mkv_ascend.adapters.patching import record
from mkv_ascend.ops.group_table import group_table
from mkv_ascend.ops.target_slots import TargetSlotsArguments, slot_table, target_slots


class TargetSlots:
    """Slots of the target's batch in all of its KV groups, in one launch.

    vllm-ascend launches a kernel for each KV group, even for those that only the draft uses.

    Args:
        tables: vllm-ascend's block tables of the KV groups with layers of the target.
        max_requests: largest number of requests of a batch.
    """

    def __init__(self, tables: Sequence[Any], max_requests: int) -> None:
        self._tables = [table.get_device_tensor() for table in tables]
        self._slots = [table.slot_mapping.gpu for table in tables]
        self._group_table = group_table(self._tables, [table.block_size for table in tables])
        self._slot_table = slot_table(self._slots)
        device = self._tables[0].device
        self._counts = torch.arange(max_requests + 1, dtype=torch.int32, device=device)

    def compute(
        self, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor
    ) -> None:
        """Write the slots of a batch; the name and the order of arguments are vllm-ascend's."""
        arguments = TargetSlotsArguments(
            positions,
            query_start_loc,
            self._counts[num_reqs : num_reqs + 1],
            self._tables,
            self._group_table,
            self._slots,
            self._slot_table,
        )
        target_slots(arguments)


SLOTS = record(
    name="slots of the target in one launch",
    target="vllm_ascend.worker.block_table:MultiGroupBlockTable.compute_slot_mapping",
    reads=("vllm_ascend.worker.block_table:BlockTable.compute_slot_mapping",),
    writes=("compute_slot_mapping",),
    why="A kernel is launched for each KV group, those that only the draft uses included.",
    until="vllm-ascend computes the slots of all groups in one launch",
    test="tests/emulated/drafting/test_drafting_cost.py"
    "::test_equal_groups_of_a_target_share_builder_and_slots",
)


def slots_in_one_launch(
    tables: Any, groups: AttentionGroups, draft_layers: Collection[str], max_requests: int
) -> None:
    """Let one op compute the target's slots; ``tables`` is vllm-ascend's MultiGroupBlockTable."""
    used = [
        table
        for table, kv_group in zip(tables.block_tables, groups, strict=True)
        if not table.is_mamba_group
        and any(set(group.layer_names) - set(draft_layers) for group in kv_group)
    ]
    if used:
        tables.compute_slot_mapping = TargetSlots(used, max_requests).compute
