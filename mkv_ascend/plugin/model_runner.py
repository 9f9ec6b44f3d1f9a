# SPDX-License-Identifier: Apache-2.0
"""MkvModelRunner: vllm-ascend's model runner with separate choices for target and draft."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vllm.distributed.parallel_state import is_global_first_rank
from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder
from vllm_ascend.attention.mla_v1 import AscendMLAMetadataBuilder
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from mkv_ascend.attention.report import LayerRow, layer_rows, render
from mkv_ascend.drafting.proposers import create_proposer
from mkv_ascend.plugin import layers
from mkv_ascend.plugin.logging import get_logger

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

logger = get_logger(__name__)

HOST_LENGTH_BUILDERS = (AscendAttentionMetadataBuilder, AscendMLAMetadataBuilder)
"""Builders that read sequence lengths on the host."""


class MkvModelRunner(NPUModelRunner):
    """Runs the target and, where there is one, the draft."""

    def _get_drafter(self) -> Any:
        method = self.speculative_config.method
        return create_proposer(method, self.vllm_config, self.device, self)

    def load_model(self) -> None:
        """Load target and draft; every layer has its backend afterwards.

        Raises:
            SelectionError: no backend fits a layer, or a pattern of ``attention.layers``
                matches none.
        """
        super().load_model()
        layers.check_options(self.vllm_config)
        # vllm-ascend asks the target's backend alone. The host lengths must be right when any
        # layer's builder reads them, the draft's included.
        self._needs_seq_lens_cpu_sync = self.use_compress or any(
            issubclass(layer.get_attn_backend().get_builder_cls(), HOST_LENGTH_BUILDERS)
            for layer in layers.chosen_layers(self.vllm_config).values()
        )

    def initialize_kv_cache(self, kv_cache_config: KVCacheConfig) -> None:
        """Allocate the caches, then print the table of layers, backends and KV groups once."""
        super().initialize_kv_cache(kv_cache_config)
        if is_global_first_rank():
            logger.info("%s", render(self.layer_rows()))

    def layer_rows(self) -> tuple[LayerRow, ...]:
        """Which backend serves which layer, in which KV group; in the order of creation."""
        groups = {
            name: gid
            for gid, group in enumerate(self.kv_cache_config.kv_cache_groups)
            for name in group.layer_names
        }
        draft_layers = getattr(self.drafter, "_draft_attn_layer_names", ())
        return layer_rows(layers.all_choices(self.vllm_config, draft_layers), groups)
