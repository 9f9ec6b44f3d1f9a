# SPDX-License-Identifier: Apache-2.0
"""Mixins that sort a draft's layers into groups when the engine starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.worker.utils import AttentionGroup

from mkv_ascend.drafting.groups import (
    DraftGroups,
    find_groups,
    refuse_recurrent_layers,
)
from mkv_ascend.drafting.metadata import MetadataMaker, distinct_needs


class Grouped:
    """Mixin before a proposer of vllm-ascend: its layers may lie in any number of KV groups."""

    vllm_config: Any
    runner: Any
    device: torch.device
    draft_groups: DraftGroups
    metadata: MetadataMaker
    draft_attn_groups: list[Any]
    attn_layer_names: list[str]
    _draft_attn_layer_names: set[str]

    def load_model(self, model: Any) -> None:
        """Load the draft; its layers are listed in the order in which it runs them.

        Raises:
            NotImplementedError: the draft has layers that cannot be served.
        """
        super().load_model(model)  # type: ignore[misc]
        self.refuse_layers(self.layer_specs())
        self.attn_layer_names = list(self._draft_layers())

    def refuse_layers(self, specs: Mapping[str, Any]) -> None:
        """Refuse layers that cannot be served: recurrent ones.

        Args:
            specs: the KV cache spec of each of the draft's layers.
        """
        refuse_recurrent_layers(specs)

    def layer_specs(self) -> dict[str, Any]:
        """The KV cache spec of each of the draft's layers."""
        layers = self._draft_layers()
        return {name: layer.get_kv_cache_spec(self.vllm_config) for name, layer in layers.items()}

    def attention_layers(self) -> dict[str, Any]:
        """The draft's layers that keep keys and values: all, but for recurrent drafts."""
        return self._draft_layers()

    def _draft_layers(self) -> dict[str, Any]:
        """The draft's attention layers, in the order in which they were made: that they run in."""
        every = get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase)
        mine = self._draft_attn_layer_names
        return {name: layer for name, layer in every.items() if name in mine}

    def how_it_runs(self) -> str:
        """For the log: eagerly, and why, where the target is not."""
        if self.runner._use_aclgraph():
            return (
                "The draft runs eagerly, though the target is replayed from graphs: passes of a "
                "draft are not captured yet."
            )
        return "The draft runs eagerly."

    def validate_same_kv_cache_group(self, kv_cache_config: Any) -> None:
        """Layers may lie in any group."""

    def initialize_attn_backend(self, kv_cache_config: Any, *_: Any) -> None:
        """Sort the draft's layers into groups and make their metadata builders.

        vllm-ascend hands over the kernel blocks of group 0; those of each group are its block
        table's.
        """
        tables = self.runner.input_batch.block_table
        kv_cache_groups = kv_cache_config.kv_cache_groups
        groups = find_groups(
            self.attention_layers(),
            kv_cache_groups,
            [tables[kv_group].block_size for kv_group in range(len(kv_cache_groups))],
        )
        self.draft_groups = groups
        self.draft_attn_groups = attention_groups(groups, self.vllm_config, self.device)
        builders = [group.get_metadata_builder() for group in self.draft_attn_groups]
        self.metadata = MetadataMaker(groups, distinct_needs(groups, builders))
        self.kv_cache_gid = groups.kv_groups[0]
        self.block_size = self.kernel_block_size = groups.block_sizes[0]


def attention_groups(groups: DraftGroups, config: Any, device: Any) -> list[AttentionGroup]:
    """vLLM's attention group, with its metadata builder, for each of ``groups``."""
    made = []
    for group in groups.groups:
        attention_group = AttentionGroup(
            backend=group.backend,
            layer_names=list(group.layer_names),
            kv_cache_spec=group.spec,
            kv_cache_group_id=group.kv_group,
        )
        attention_group.create_metadata_builders(config, device)
        made.append(attention_group)
    return made
