# SPDX-License-Identifier: Apache-2.0
"""The target's pass: metadata of the target's layers only, once per distinct need.

In the target's pass vllm-ascend builds metadata for every KV group. That includes the draft's
groups, although the draft makes its own metadata and nothing else reads them. Groups that differ
only in their block table each cost a run of their builder.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.v1.kv_cache_interface import CrossAttentionSpec, EncoderOnlyAttentionSpec
from vllm.v1.worker.utils import AttentionGroup

from mkv_ascend.adapters.common.backends.dense import Dense
from mkv_ascend.adapters.common.backends.gdn import GatedDeltaNet, gdn_of
from mkv_ascend.adapters.common.backends.port import Backend

BackendOf = Callable[[Any, Any], Backend]
"""What makes the metadata of a builder for layers of a spec (``DraftHost.backend_of``)."""

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

    sharing: Dense | GatedDeltaNet
    leader: str
    layers: tuple[str, ...]
    table: Any

    def metadata(self, built: Any, num_reqs: int, lengths: torch.Tensor) -> Any:
        """The followers' metadata, from the leader's.

        Args:
            num_reqs: requests of the pass.
            lengths: int32 [rows], lengths of their sequences, then of the padding requests.
        """
        if isinstance(self.sharing, GatedDeltaNet):
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
        return self.sharing.for_group(built, slots, table)


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
    backend_of: BackendOf,
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
        backend_of: how metadata is shared.
        share: whether groups may share metadata.
    """
    leaders: dict[Hashable, tuple[Dense | GatedDeltaNet, str]] = {}
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
            sharing = _sharing_of(group, backend_of) if share else None
            need = None if sharing is None else sharing.need()
            if need in leaders:
                followers.append(Follower(*leaders[need], tuple(names), tables[index]))
                continue
            built.append(replace(group, layer_names=names))
            if sharing is not None:
                leaders[need] = sharing, names[0]
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


def _sharing_of(group: AttentionGroup, backend_of: BackendOf) -> Dense | GatedDeltaNet | None:
    """How metadata of the group serves others with an equal need; None: it serves none."""
    builder, spec = group.get_metadata_builder(), group.kv_cache_spec
    gdn = gdn_of(builder, spec)
    if gdn is not None or isinstance(spec, NEVER_SHARED):
        return gdn
    backend = backend_of(builder, spec)
    return backend if isinstance(backend, Dense) and backend.shares else None
