# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's drafts of mask tokens, with a context in several KV groups.

vllm-ascend's own proposer needs Triton, and has one block table and one set of slots.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec

from mkv_ascend.adapters.common.attention.backends import has_windows_of_drafts
from mkv_ascend.adapters.common.drafting.draft import AscendDraft
from mkv_ascend.drafting.draft import DraftGroups, HiddenStates


@dataclass(frozen=True)
class LayerInGroup:
    """Replaces an attention layer where vLLM writes the context's keys and values into it.

    vLLM's draft gives the same slots to all layers. Here these are the slots of all KV groups, and
    the layer takes those of its own group.
    """

    layer: Any
    table: int

    @property
    def kv_cache(self) -> Any:
        """The layer's cache."""
        return self.layer.kv_cache

    @property
    def impl(self) -> LayerInGroup:
        """The object whose ``do_kv_cache_update`` vLLM calls."""
        return self

    def do_kv_cache_update(
        self, _: Any, key: torch.Tensor, value: torch.Tensor, cache: Any, slots: torch.Tensor
    ) -> None:
        """Write ``key`` and ``value`` [T, heads, size] to ``slots`` int32 [groups, T]."""
        self.layer.impl.do_kv_cache_update(self.layer, key, value, cache, slots[self.table])


class MaskTokensDraft(AscendDraft):
    """``ContextDraft``: vLLM's model of method dflash."""

    def combine(self, states: torch.Tensor) -> torch.Tensor:
        combined: torch.Tensor = self.model.combine_hidden_states(states)
        return combined

    def forward(self, rows: int, positions: torch.Tensor | None = None) -> HiddenStates:
        """See ``Draft``; there is one pass."""
        states = self.model(
            input_ids=self.buffers.token_ids[:rows],
            positions=self.buffers.positions[:rows],
            inputs_embeds=None,
        )
        return HiddenStates(states, states)

    def write_context(
        self, states: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor
    ) -> None:
        self.model.precompute_and_store_context_kv(states, positions, slots)

    def bind_layers(self) -> None:
        """Let each layer take the slots of its own KV group, once the groups are known."""
        inner = self.model.model
        if not hasattr(inner, "_num_attn_layers"):
            inner._build_fused_kv_buffers()
        inner._attn_layers = [
            LayerInGroup(_layer_itself(layer), table_of(layer, self.groups))
            for layer in inner._attn_layers
        ]


def run_dummy_pass(draft: AscendDraft, rows: int, *, is_profile: bool) -> None:
    """The draft's only pass, in a forward context; a profile computes keys of a context, too."""
    model, buffers = draft.model, draft.buffers
    if is_profile:
        states = buffers.hidden_states
        assert states is not None, "they hold a context"
        positions = buffers.positions.new_zeros(states.shape[0])
        model.precompute_and_store_context_kv(states, positions)
    model(
        input_ids=buffers.token_ids.new_zeros(rows),
        positions=buffers.positions[:rows],
        inputs_embeds=None,
    )


def _layer_itself(layer: Any) -> Any:
    return layer.layer if isinstance(layer, LayerInGroup) else layer


def table_of(layer: Any, groups: DraftGroups) -> int:
    """The index of the KV group, among the draft's, that holds this attention layer."""
    name = _layer_itself(layer).layer_name
    return next(group.table for group in groups.groups if name in group.layer_names)


def causal_layers(model: Any, config: Any) -> frozenset[str]:
    """Names of the layers whose rows see no later row of the block.

    vLLM 0.30.0 says it layer by layer: published heads have such layers with windows beside layers
    that see all of the block. vLLM 0.23.0 has one answer, in ``config``, for all layers.
    """
    names = [layer.self_attn.attn.layer_name for layer in model.model.layers]
    by_layer = getattr(model, "get_draft_attn_causal", None)
    if by_layer is None:
        all_of_them = (getattr(config, "dflash_config", None) or {}).get("causal", False)
        return frozenset(names if all_of_them else ())
    return frozenset(name for name, causal in zip(names, by_layer(), strict=True) if causal)


def refuse_windows(
    specs: Mapping[str, Any], causal: Collection[str], layers: Mapping[str, Any]
) -> None:
    """Refuse windows of layers that see all of a block, where their backend has none for them.

    Args:
        specs: the KV cache spec of each layer.
        causal: names of layers that see no later row of the block.
        layers: the layers.

    Raises:
        NotImplementedError: a layer has a window and sees later rows, and its backend is none of
            ``WINDOWS_OF_DRAFTS``.
    """
    for name, spec in specs.items():
        whole = isinstance(spec, FullAttentionSpec) and spec.sliding_window is None
        if whole or name in causal or has_windows_of_drafts(layers[name].get_attn_backend()):
            continue
        raise NotImplementedError(
            f"the draft's layer {name} has a cache of {type(spec).__name__}, and sees the mask "
            "tokens behind its own: without a causal mask its backend calls its operator without a "
            "window, so keys that the layer must not see would be read, in blocks that may be "
            "freed. Choose a draft of this method whose layers with windows are causal, or one "
            "whose layers attend to all tokens."
        )
