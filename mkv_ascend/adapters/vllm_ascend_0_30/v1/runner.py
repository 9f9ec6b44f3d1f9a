# SPDX-License-Identifier: Apache-2.0
"""MkvModelRunner: the model runner V1 of vllm-ascend 0.30.0rc2, with our choices and drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mkv_ascend.adapters.common.runner import HostRunner
from mkv_ascend.adapters.common.verifying_rows import name_rows
from mkv_ascend.adapters.patching import override
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.host import HOST
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.engine_core import our_groups
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.left_alone import (
    why_not_planned_groups,
)
from mkv_ascend.adapters.vllm_ascend_0_30.common.kv_cache.planned_specs import planned_specs


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
        specs, self._strided = planned_specs(
            self.vllm_config, super().get_kv_cache_spec, self._draft_layers()
        )
        return specs
