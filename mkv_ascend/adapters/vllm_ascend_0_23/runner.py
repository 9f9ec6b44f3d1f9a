# SPDX-License-Identifier: Apache-2.0
"""MkvModelRunner: the model runner of vllm-ascend 0.23.0, with our choices and drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.config import get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention, MLAAttention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.layers.mamba.abstract import MambaBase

from mkv_ascend.adapters.common.kv_cache.layer_facts import tie_facts
from mkv_ascend.adapters.common.runner import HostRunner
from mkv_ascend.adapters.common.runner_records import LOADED
from mkv_ascend.adapters.common.verifying_rows import in_prompts, name_rows
from mkv_ascend.adapters.patching import override, record
from mkv_ascend.adapters.vllm_ascend_0_23.drafting.host import HOST
from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache.kv_transfer import why_not_planned
from mkv_ascend.adapters.vllm_ascend_0_23.kv_cache.mla_specs import corrected_specs
from mkv_ascend.adapters.vllm_ascend_0_23.patches.identity_rope import record_identity_rope
from mkv_ascend.adapters.vllm_ascend_0_23.target_slots import slots_in_one_launch

OF_VLLM = (Attention, MLAAttention, MambaBase)
"""Layers that take the cache tensors themselves, not a list of them."""

BOUND_CACHES = record(
    name="caches of a draft beside DeepSeek-V4",
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache_tensors",
    writes=("kv_cache",),
    why="With that target the caches of all layers are bound in a list, as its own take them; "
    "the draft's find no keys in it.",
    until="vllm-ascend asks the layer how it takes its cache",
    test="tests/emulated/models/test_deepseek_v4.py::test_dense_draft",
)


class MkvModelRunner(HostRunner):
    """Runs the target and, where there is one, the draft."""

    DRAFT_HOST = HOST

    def why_not_planned(self, specs: Sequence[Mapping[str, Any]]) -> str | None:
        """See the base."""
        return why_not_planned(self.vllm_config, specs)

    def kernel_block_sizes_of_groups(self) -> Sequence[Sequence[int]]:
        """See the base."""
        sizes: Sequence[Sequence[int]] = self.kernel_block_sizes
        return sizes

    @override(LOADED)
    def load_model(self) -> None:
        """See the base; latent attention that rotates nothing gets tables that rotate so."""
        super().load_model()
        record_identity_rope(self.vllm_config, self.device)

    @override(BOUND_CACHES)
    def initialize_kv_cache_tensors(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Bind plain caches to vLLM's own layers.

        Beside a DeepSeek-V4 target, vllm-ascend binds the draft's caches in a list, as that
        target's layers take them. vLLM's own layers take the caches themselves.
        """
        caches: dict[str, Any] = super().initialize_kv_cache_tensors(*args, **kwargs)
        for name, cache in caches.items():
            layer = self.compilation_config.static_forward_context[name]
            if isinstance(layer, OF_VLLM) and isinstance(layer.kv_cache, list):
                layer.kv_cache = cache
        return caches

    def plan_the_targets_pass(self) -> None:
        """See the base; also computes the slots of all groups in one launch."""
        # Metadata of Hamming attention differs by group.
        self.limit_the_targets_pass(self.use_cp, share=not self.enable_hamming_sparse)
        if self._target_pass is not None:
            tables = self.input_batch.block_table
            slots_in_one_launch(tables, self.attn_groups, self._draft_layers(), self.max_num_reqs)

    @override(
        record(
            name="chunks of prompts are no verify steps",
            target="vllm_ascend.worker.model_runner_v1:NPUModelRunner."
            "_determine_batch_execution_and_padding",
            why="A graph is chosen by shape, so a chunk of K + 1 tokens of a prompt is replayed as "
            "a verify step. A gated delta net then goes on from the state of another token; a "
            "request whose first chunk is one token, without drafts, from what the block held "
            "before.",
            until="vllm-ascend asks whether each prompt is fully computed",
            test="tests/emulated/graphs/test_state_graphs.py",
        )
    )
    def _determine_batch_execution_and_padding(
        self,
        num_tokens: int,
        num_reqs: int,
        *args: Any,
        force_uniform_decode: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        """As vllm-ascend's, but no chunk of a prompt runs in a graph of verify steps.

        This concerns models with recurrent layers. vllm-ascend judges by shape, and a chunk of
        K + 1 tokens looks like a verify step.
        """
        batch, model = self.input_batch, self.model_config
        if force_uniform_decode is None and (model.is_hybrid or model.is_attention_free):
            computed = batch.num_computed_tokens_cpu[:num_reqs]
            if in_prompts(computed, batch.num_prompt_tokens[:num_reqs]).any():
                force_uniform_decode = False
        return super()._determine_batch_execution_and_padding(
            num_tokens, num_reqs, *args, force_uniform_decode=force_uniform_decode, **kwargs
        )

    def name_verifying_rows(self, asked: dict[str, Any]) -> None:
        """See the base."""
        name_rows(self, asked)

    @override(
        record(
            name="specs of MLA layers",
            target="vllm_ascend.worker.model_runner_v1:NPUModelRunner.get_kv_cache_spec",
            why="Whether layers have an indexer, and of what sizes, is asked of the target's "
            "configuration for the draft's layers too.",
            until="vllm-ascend asks the layer",
            test="tests/emulated/models/test_latent_specs.py",
        )
    )
    def get_kv_cache_spec(self) -> dict[str, Any]:
        """The spec of every layer with a cache, with the facts that planning needs besides."""
        all_layers = get_layers_from_vllm_config(self.vllm_config, AttentionLayerBase)
        specs = corrected_specs(
            super().get_kv_cache_spec(),
            all_layers,
            self.vllm_config,
            self.sfa_dcp_replicated_indexer_size,
        )
        tie_facts(specs, all_layers, self._draft_layers())
        return specs
