# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's model runner with what hosts share of ours; an adapter derives from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm_ascend.attention.attention_v1 import AscendAttentionMetadataBuilder
from vllm_ascend.attention.mla_v1 import AscendMLAMetadataBuilder
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from mkv_ascend.adapters.common.attention import layers
from mkv_ascend.adapters.common.early_checks import recurrent_refusals
from mkv_ascend.adapters.common.patches import auxiliary_states
from mkv_ascend.adapters.common.patches.identity_rope import record_identity_rope
from mkv_ascend.adapters.common.patches.two_head_sizes import drop_rows_of_other_sizes
from mkv_ascend.adapters.patching import override, record
from mkv_ascend.attention.report import LayerRow, layer_rows
from mkv_ascend.layout.bound import BoundPlan

if TYPE_CHECKING:
    from vllm.v1.kv_cache_interface import KVCacheConfig

HOST_LENGTH_BUILDERS = (AscendAttentionMetadataBuilder, AscendMLAMetadataBuilder)
"""Builders that read sequence lengths on the host."""


LOADED = record(
    name="checks after the models are loaded",
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner.load_model",
    writes=("_needs_seq_lens_cpu_sync",),
    why="Backends, states and rotary tables of both models are known only then. And whether "
    "lengths are kept right on the host is decided by the target's backend alone; a draft's "
    "builder may read lengths on the host when the target's does not.",
    until="vllm-ascend asks the backends of all layers",
    test="tests/emulated/platform/test_platform.py"
    "::test_host_lengths_are_kept_right_when_any_layer_reads_them",
)


class HostRunner(NPUModelRunner):
    """Runs the target and, where there is one, the draft.

    ``cache_plan``: the plan of all KV caches; None before they are allocated, and where
    vllm-ascend allocates them.
    """

    cache_plan: BoundPlan | None = None
    kv_cache_config: KVCacheConfig

    @override(LOADED)
    def load_model(self) -> None:
        """Load target and draft; afterwards every layer has its backend.

        Raises:
            SelectionError: no backend fits a layer, or a pattern of ``attention.layers``
                matches none.
        """
        asked = self.use_aux_hidden_state_outputs or self._eagle3_uses_aux_hidden_state()
        with auxiliary_states.with_auxiliary_states(asked, self.vllm_config):
            super().load_model()
        record_identity_rope(self.vllm_config, self.device)
        drop_rows_of_other_sizes()
        all_layers = get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase)
        drafts = self._draft_layers()
        recurrent_refusals.refuse(
            self.vllm_config, {name: all_layers[name] for name in all_layers if name not in drafts}
        )
        layers.check_options(self.vllm_config)
        # vllm-ascend asks only the target's backend. The lengths on the host must be exact if any
        # layer's builder reads them, even a layer of the draft.
        self._needs_seq_lens_cpu_sync = self.use_compress or any(
            issubclass(layer.get_attn_backend().get_builder_cls(), HOST_LENGTH_BUILDERS)
            for layer in layers.chosen_layers(self.vllm_config).values()
        )

    def _draft_layers(self) -> frozenset[str]:
        return frozenset(getattr(self.drafter, "_draft_attn_layer_names", ()))

    def layer_rows(self) -> tuple[LayerRow, ...]:
        """Each layer with its backend and its KV group, in the order of creation."""
        groups = {
            name: gid
            for gid, group in enumerate(self.kv_cache_config.kv_cache_groups)
            for name in group.layer_names
        }
        return layer_rows(layers.all_choices(self.vllm_config, self._draft_layers()), groups)

    def zero_new_blocks(self) -> None:
        """Zero new blocks from now on, where a draft's may have held states (``new_blocks``)."""
        if self.cache_plan is None or not self.kv_cache_config.needs_kv_cache_zeroing:
            return
        if getattr(self.drafter, "assembly", None) is not None and not hasattr(
            self, "_kv_block_zeroer"
        ):
            self._init_kv_zero_meta()
