# SPDX-License-Identifier: Apache-2.0
"""The target's pass: slots and metadata for the target's layers only, once per distinct need.

vllm-ascend computes slots and builds metadata for every KV group in the target's pass, the draft's
included, which nobody reads there: the draft makes its own. And groups that differ in nothing but
their block table each have their kernel launched and their builder run.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from vllm.v1.worker.utils import AttentionGroup

from mkv_ascend.drafting.sharing import Sharing, sharing_of
from mkv_ascend.ops.group_table import group_table
from mkv_ascend.ops.target_slots import slot_table, target_slots

AttentionGroups = list[list[AttentionGroup]]
"""vllm-ascend's ``attn_groups``: per KV group its attention groups."""


class NothingToBuild:
    """Metadata builder of a KV group without layers of the target.

    vllm-ascend looks at the first attention group of every KV group, so there must be one.
    """

    reorder_batch_threshold = None

    def build(self, *args: Any, **kwargs: Any) -> None:
        """Builds nothing, for no layer."""

    build_for_cudagraph_capture = build


def without_layers(groups: AttentionGroups, layers: Collection[str]) -> AttentionGroups:
    """The attention groups without these layers. Groups that lose all of theirs go.

    A KV group that loses its last attention group keeps one without layers.
    """
    kept = []
    for of_kv_group in groups:
        left = [
            replace(group, layer_names=names)
            for group in of_kv_group
            if (names := [name for name in group.layer_names if name not in layers])
        ]
        if of_kv_group and not left:
            left = [replace(of_kv_group[0], layer_names=[], metadata_builders=[NothingToBuild()])]
        kept.append(left)
    return kept


def visible_config(config: Any, groups: AttentionGroups, draft_layer: str) -> Any:
    """The KV cache configuration as the target's pass sees it: its own groups.

    Groups that only the draft uses come last, and are left out: their block tables are the draft's
    business. vllm-ascend keeps the common metadata of the group in which ``draft_layer`` lies for
    the draft, which reads of it what is the same for all groups; so the layer is counted to the
    first.
    """
    last = max((index for index, used in enumerate(map(_has_layers, groups)) if used), default=0)
    visible = copy.copy(config)
    visible.kv_cache_groups = list(config.kv_cache_groups[: last + 1])
    first = visible.kv_cache_groups[0]
    visible.kv_cache_groups[0] = replace(first, layer_names=[*first.layer_names, draft_layer])
    return visible


def _has_layers(of_kv_group: Sequence[AttentionGroup]) -> bool:
    return any(group.layer_names for group in of_kv_group)


def share_builds(groups: AttentionGroups) -> int:
    """Let one builder run for all groups that need the same. Returns how many no longer run.

    The first of them builds; the others copy what it built and put their block table and slots in.
    """
    builds: dict[Hashable, _SharedBuild] = {}
    saved = 0
    for group in (group for of_kv_group in groups for group in of_kv_group):
        builder = group.get_metadata_builder()
        sharing = sharing_of(builder)
        if sharing is None:
            continue
        need = (type(builder), sharing.reads(group.kv_cache_spec))
        if need in builds:
            builds[need].follow(builder)
            saved += 1
        else:
            builds[need] = _SharedBuild(sharing, builder)
    return saved


class _SharedBuild:
    """What a leading builder built last, and the builders that copy it."""

    def __init__(self, sharing: Sharing, leader: Any) -> None:
        self._sharing = sharing
        self._common: Any = None
        self._built: Any = None
        self._build = leader.build
        leader.build = self._leading

    def follow(self, builder: Any) -> None:
        """Let this builder copy what the leader built in the same pass."""
        builder.build = self._following(builder.build)

    def _leading(self, common_prefix_len: int, common_attn_metadata: Any, **more: Any) -> Any:
        self._built = self._build(common_prefix_len, common_attn_metadata, **more)
        self._common = common_attn_metadata
        return self._built

    def _following(self, build: Callable[..., Any]) -> Callable[..., Any]:
        def follow(common_prefix_len: int, common_attn_metadata: Any, **more: Any) -> Any:
            if not self._is_of(common_attn_metadata) or common_prefix_len:
                return build(common_prefix_len, common_attn_metadata, **more)
            common = common_attn_metadata
            slots = common.slot_mapping[: common.num_actual_tokens]
            return self._sharing.for_group(self._built, common.block_table_tensor, slots)

        return follow

    def _is_of(self, common: Any) -> bool:
        """Whether the leader built for this very pass, with as many rows of the block table."""
        leading = self._common
        return (
            leading is not None
            and leading.query_start_loc is common.query_start_loc
            and self._built.block_tables.shape[0] == common.block_table_tensor.shape[0]
        )


class TargetSlots:
    """Slots of the target's batch in all of its KV groups, in one launch.

    vllm-ascend launches a kernel for each KV group, those that only the draft uses included.

    Args:
        tables: vllm-ascend's block tables of the KV groups with layers of the target.
        max_requests: most requests of a batch.
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


def slots_in_one_launch(tables: Any, groups: AttentionGroups, max_requests: int) -> None:
    """Let ``tables``, vllm-ascend's MultiGroupBlockTable, compute the target's slots by one op."""
    used = [
        tables[kv_group]
        for kv_group, of_kv_group in enumerate(groups)
        if _has_layers(of_kv_group) and not tables[kv_group].is_mamba_group
    ]
    if used:
        tables.compute_slot_mapping = TargetSlots(used, max_requests).compute
