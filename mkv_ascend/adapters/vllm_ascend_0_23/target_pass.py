# SPDX-License-Identifier: Apache-2.0
"""The target's pass: slots and metadata of the target's layers only, once per distinct need.

In the target's pass vllm-ascend computes slots and builds metadata for every KV group. That
includes the draft's groups, although the draft makes its own metadata and nothing else reads them.
Groups that differ only in their block table each cost a kernel launch and a run of their builder.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.v1.kv_cache_interface import CrossAttentionSpec, EncoderOnlyAttentionSpec
from vllm.v1.worker.utils import AttentionGroup

from mkv_ascend.adapters.patching import record
from mkv_ascend.adapters.vllm_ascend_0_23.drafting.gdn_sharing import (
    GDNSharing,
    gdn_need,
    gdn_sharing_of,
)
from mkv_ascend.adapters.vllm_ascend_0_23.drafting.sharing import Sharing, sharing_of
from mkv_ascend.ops.group_table import group_table
from mkv_ascend.ops.target_slots import slot_table, target_slots

AttentionGroups = list[list[AttentionGroup]]
"""vllm-ascend's ``attn_groups``: per KV group its attention groups."""


@dataclass(frozen=True)
class Follower:
    """Layers that reuse another group's metadata; only block table and slots differ.

    Attributes:
        sharing: how their metadata is made from the leader's.
        leader: a layer of the group whose builder runs.
        layers: the layers that follow it.
        table: vllm-ascend's block table of their KV group.
    """

    sharing: Sharing | GDNSharing
    leader: str
    layers: tuple[str, ...]
    table: Any

    def metadata(self, built: Any, num_reqs: int, lengths: torch.Tensor) -> Any:
        """The followers' metadata, from the leader's.

        Args:
            num_reqs: requests of the pass.
            lengths: int32 [rows], lengths of their sequences, then of the padding requests.
        """
        if isinstance(self.sharing, GDNSharing):
            rows = lengths.shape[0]
            table = self.table.get_device_tensor()[:rows]
            table[num_reqs:].fill_(0)
            return self.sharing.for_table(built, table, lengths)
        rows = max(self.sharing.block_table(built).shape[0], num_reqs)
        table = self.table.get_device_tensor()[:rows]
        if rows > table.shape[0]:  # the builder added a padding request
            table = torch.cat([table, table.new_zeros((rows - table.shape[0], table.shape[1]))])
        if rows > num_reqs:
            table[num_reqs:].fill_(0)
        slots = self.table.slot_mapping.gpu[: built.slot_mapping.shape[0]]
        return self.sharing.for_group(built, table, slots)


@dataclass(frozen=True)
class TargetPass:
    """The KV groups that vllm-ascend sees while it builds the target's metadata.

    Attributes:
        config, attention_groups, tables: replace the runner's ``kv_cache_config``,
            ``attn_groups`` and ``input_batch.block_table``. All three have one index: the KV
            groups for whose layers a builder must run.
        followers: layers of the target that need no builder of their own.
        layers: all layers of the target, in the order in which vllm-ascend lists them.
    """

    config: Any
    attention_groups: AttentionGroups
    tables: list[Any]
    followers: tuple[Follower, ...]
    layers: tuple[str, ...]

    def complete(
        self, metadata: dict[str, Any], num_reqs: int, lengths: torch.Tensor
    ) -> dict[str, Any]:
        """Add the followers' metadata to ``metadata``, which vllm-ascend built.

        For the arguments see ``Follower.metadata``.
        """
        made = dict(metadata)
        for follower in self.followers:
            group_metadata = follower.metadata(metadata[follower.leader], num_reqs, lengths)
            made.update(dict.fromkeys(follower.layers, group_metadata))
        return {name: made[name] for name in self.layers}


NEVER_SHARED = (CrossAttentionSpec, EncoderOnlyAttentionSpec)
"""Specs of layers that attend to tokens outside the batch."""


def plan_target_pass(
    config: Any,
    groups: AttentionGroups,
    tables: Sequence[Any],
    draft_layers: Collection[str],
    share: bool = True,
) -> TargetPass:
    """Decide for which KV groups builders run in the target's pass.

    vllm-ascend keeps one group's common metadata for the draft: that of the KV group with the
    draft's first layer. The draft reads only the parts that are equal for all groups. So the
    draft's layers are listed in the first group shown.

    Args:
        config: vLLM's KV cache configuration.
        groups: attention groups per KV group.
        tables: vllm-ascend's block tables, one per KV group.
        draft_layers: layers that have no metadata in the target's pass.
        share: whether groups may share metadata.
    """
    leaders: dict[Hashable, tuple[Sharing | GDNSharing, str]] = {}
    shown: list[tuple[int, list[AttentionGroup]]] = []
    followers: list[Follower] = []
    layers: list[str] = []
    for index, kv_group in enumerate(groups):
        built: list[AttentionGroup] = []
        for group in kv_group:
            names = [name for name in group.layer_names if name not in draft_layers]
            if not names:
                continue
            layers += names
            need = _need_of(group) if share else None
            if need is not None and need in leaders:
                sharing, leader = leaders[need]
                followers.append(Follower(sharing, leader, tuple(names), tables[index]))
                continue
            built.append(replace(group, layer_names=names))
            builder = group.get_metadata_builder()
            sharing_here = sharing_of(builder) or gdn_sharing_of(builder)
            if need is not None and sharing_here is not None:
                leaders[need] = sharing_here, names[0]
        if built:
            shown.append((index, built))
    view = copy.copy(config)
    view.kv_cache_groups = [config.kv_cache_groups[index] for index, _ in shown]
    if draft_layers and shown:
        first = view.kv_cache_groups[0]
        view.kv_cache_groups[0] = replace(first, layer_names=[*first.layer_names, *draft_layers])
    return TargetPass(
        view,
        [built for _, built in shown],
        [tables[index] for index, _ in shown],
        tuple(followers),
        tuple(layers),
    )


def _need_of(group: AttentionGroup) -> Hashable:
    """Groups with equal values share metadata; None: the group shares none."""
    builder = group.get_metadata_builder()
    if gdn_sharing_of(builder) is not None:
        return gdn_need(builder, group.kv_cache_spec)
    sharing = sharing_of(builder)
    if sharing is None or isinstance(group.kv_cache_spec, NEVER_SHARED):
        return None
    return type(builder), sharing.reads(group.kv_cache_spec)


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
        target_slots(
            positions,
            query_start_loc,
            self._counts[num_reqs : num_reqs + 1],
            self._tables,
            self._group_table,
            self._slots,
            self._slot_table,
        )


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
