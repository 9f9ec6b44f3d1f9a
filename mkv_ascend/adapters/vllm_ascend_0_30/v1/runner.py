# SPDX-License-Identifier: Apache-2.0
"""MkvModelRunner: the model runner V1 of vllm-ascend 0.30.0rc2, with our choices and drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

from mkv_ascend.adapters.common.kv_cache.layer_facts import tie_facts
from mkv_ascend.adapters.common.runner import HostRunner
from mkv_ascend.adapters.common.verifying_rows import name_rows
from mkv_ascend.adapters.patching import lent, override
from mkv_ascend.adapters.vllm_ascend_0_30.v1.drafting.host import HOST
from mkv_ascend.adapters.vllm_ascend_0_30.v1.kv_cache.engine_core import our_groups
from mkv_ascend.adapters.vllm_ascend_0_30.v1.kv_cache.left_alone import (
    why_not_planned,
    why_not_planned_groups,
)
from mkv_ascend.adapters.vllm_ascend_0_30.v1.kv_cache.mla_specs import (
    corrected_specs,
    size_of_index_keys,
)
from mkv_ascend.adapters.vllm_ascend_0_30.v1.kv_cache.strides import layers_with_strides


class MkvModelRunner(HostRunner):
    """Runs the target and, where there is one, the draft."""

    DRAFT_HOST = HOST

    def why_not_planned(self, specs: Sequence[Mapping[str, Any]]) -> str | None:
        """See the base."""
        return why_not_planned_groups(self.vllm_config, specs)

    def kernel_block_sizes_of_groups(self) -> Sequence[Sequence[int]]:
        """See the base; there is one size for each group."""
        return [[size] for size in self.kernel_block_sizes]

    def plan_the_targets_pass(self) -> None:
        """See the base; vllm-ascend computes the slots of all groups in one launch itself."""
        self.limit_the_targets_pass(self.use_dcp)

    def name_verifying_rows(self, asked: dict[str, Any]) -> None:
        """See the base; the builder sees no verification where all rows have 0 drafts."""
        name_rows(self, asked, least=1)

    @override(our_groups.record)
    def get_kv_cache_spec(self) -> dict[str, Any]:
        """The spec of every layer with a cache, with the facts that planning needs besides."""
        all_layers = get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase)
        asked = self.model_config.hf_text_config
        with lent(asked, "index_head_dim", size_of_index_keys(self.vllm_config)):
            specs = corrected_specs(super().get_kv_cache_spec(), all_layers)
        self._strided = layers_with_strides(specs)
        # Specs with facts are what the engine core takes for planned ones.
        if why_not_planned(self.vllm_config, specs.values()) is None:
            tie_facts(specs, all_layers, self._draft_layers(), self._strided)
        return specs
