# SPDX-License-Identifier: Apache-2.0
"""The strategies of drafting, with what each asks of a draft before it drafts.

A draft's strategy is chosen by the method (``proposers.py``).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from vllm.config import CUDAGraphMode, get_layers_from_vllm_config
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.kv_cache_interface import MambaSpec
from vllm_ascend.attention.mla_v1 import AscendMLAMetadataBuilder

from mkv_ascend.adapters.common.backends.port import CommonMetadata
from mkv_ascend.adapters.common.drafting.draft import AscendDraft
from mkv_ascend.adapters.common.drafting.draft_config import builder_config
from mkv_ascend.adapters.common.drafting.layer_groups import (
    find_recurrent_groups,
    refuse_recurrent_layers,
    refuse_unknown_kinds,
)
from mkv_ascend.adapters.common.drafting.mask_tokens import (
    MaskTokensDraft,
    causal_layers,
    refuse_windows,
)
from mkv_ascend.adapters.common.drafting.target_parts import read_keys_of_the_target
from mkv_ascend.adapters.port import BlockTables, DraftFacts, LoadedDraft
from mkv_ascend.drafting.draft import DraftBuffers
from mkv_ascend.drafting.mask_tokens_strategy import MaskTokensStrategy
from mkv_ascend.drafting.plan import Sizes
from mkv_ascend.drafting.recurrent_groups import RecurrentGroups
from mkv_ascend.drafting.recurrent_strategy import RecurrentStrategy
from mkv_ascend.drafting.strategy import AttentionStrategy, Planner, Strategy

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.common.drafting.host import DraftHost

MOST_QUERIES_OF_A_DECODE = 16
"""Limit of npu_fused_infer_attention_score for MLA in the TND layout (its docs; mla_v1.py)."""

Layers = Mapping[str, Any]


@dataclass(frozen=True)
class BoundDraft:
    """A draft whose layers lie in KV groups.

    Attributes:
        planner: plans the passes of the draft.
        kv_cache_groups: vLLM's KV groups of the engine.
        common: makes the input that metadata builders share.
        tables: the engine's block tables.
    """

    loaded: LoadedDraft
    planner: Planner
    kv_cache_groups: Any
    common: CommonMetadata
    tables: BlockTables


class HostStrategy(Strategy):
    """A strategy with what a draft needs before it has one: the base serves attention layers.

    ``draft_class``: of drafts of this strategy; None: the host's.
    """

    draft_class: ClassVar[type[AscendDraft] | None] = None

    @classmethod
    def early_buffers(cls, facts: DraftFacts, inputs: DraftBuffers) -> DraftBuffers:
        """``inputs`` of the passes, with buffers of ours in place of some.

        They are made with the proposer, because they must not lie among weights: sleep mode of
        level 2 takes their memory away.
        """
        return inputs

    @classmethod
    def layers_made(cls, loaded: LoadedDraft, host: DraftHost) -> None:
        """Change the draft's layers before the engine asks them for their caches."""

    @classmethod
    def refuse_layers(cls, loaded: LoadedDraft, specs: Layers) -> None:
        """Raise NotImplementedError for layers that cannot be served."""
        refuse_recurrent_layers(specs)

    @classmethod
    def causal_layers(cls, loaded: LoadedDraft) -> Collection[str]:
        """Names of layers that see no later row of a block of mask tokens."""
        return ()

    @classmethod
    def sizes(cls, facts: DraftFacts, max_model_len: int) -> Sizes:
        """Limits of the draft; ``max_model_len``: the target's."""
        return Sizes(
            later_passes=0 if facts.in_parallel else facts.num_speculative_tokens - 1,
            max_requests=facts.max_requests,
            max_tokens=facts.max_tokens,
            # Longer sequences continue with useless drafts, but never read past the end of the
            # draft's rotary tables.
            max_model_len=min(max_model_len, facts.draft_model.max_model_len),
            sampled_per_request=facts.sampled_per_request,
            shift=facts.takes_states,
            parallel_token_id=facts.mask_token_id,
            writes_rejected=facts.writes_rejected,
        )

    @classmethod
    def of(cls, bound: BoundDraft) -> HostStrategy:
        """The strategy of a draft."""
        raise NotImplementedError

    def describe(self) -> str:
        """The extra cost of a proposal, for the log."""
        return ""


class Attention(AttentionStrategy, HostStrategy):
    """Attention layers, and heads on hidden states."""

    @classmethod
    def of(cls, bound: BoundDraft) -> HostStrategy:
        return cls(bound.planner)


class TargetKeys(Attention):
    """Gemma 4's head, whose layers have queries alone and read the target's keys."""

    @classmethod
    def layers_made(cls, loaded: LoadedDraft, host: DraftHost) -> None:
        read_keys_of_the_target(loaded)
        host.run_without_keys(loaded.model, loaded.layers.values())

    @classmethod
    def sizes(cls, facts: DraftFacts, max_model_len: int) -> Sizes:
        return replace(super().sizes(facts, max_model_len), keeps_position=True)


class Recurrent(RecurrentStrategy, HostStrategy):
    """Draft models with recurrent layers."""

    @classmethod
    def refuse_layers(cls, loaded: LoadedDraft, specs: Layers) -> None:
        """Attention layers are served."""
        refuse_unknown_kinds(recurrent_layers(loaded), loaded.facts.num_speculative_tokens)

    @classmethod
    def sizes(cls, facts: DraftFacts, max_model_len: int) -> Sizes:
        """The first pass has the target's rows, as a head on hidden states has; it drafts none."""
        later = facts.num_speculative_tokens
        sizes = super().sizes(facts, max_model_len)
        return replace(sizes, later_passes=later, sampled_per_request=1, shift=True)

    @classmethod
    def of(cls, bound: BoundDraft) -> HostStrategy:
        loaded, facts = bound.loaded, bound.loaded.facts
        find = functools.partial(
            find_recurrent_groups,
            recurrent_layers(loaded),
            bound.kv_cache_groups,
            _eager(builder_config(loaded.config)),
            facts.device,
            bound.common,
        )
        groups, tables = find(), bound.tables.rows
        states = RecurrentGroups(
            groups,
            [tables[group.kv_group] for group in groups],
            facts.max_requests,
            facts.num_speculative_tokens,
        )
        return cls(bound.planner, states, lambda requests: states.for_graph(find(), requests))

    def describe(self) -> str:
        groups, needs = self.states.groups, self.states.needs
        return (
            f" {sum(len(group.layers) for group in groups)} layers keep a recurrent state, in "
            f"{len(groups)} KV groups: one pass more, and {2 * len(needs)} times metadata more."
        )


class MaskTokens(MaskTokensStrategy, HostStrategy):
    """Methods dflash and dspark."""

    draft_class = MaskTokensDraft

    @classmethod
    def early_buffers(cls, facts: DraftFacts, inputs: DraftBuffers) -> DraftBuffers:
        """Token ids are the masks of all passes; ``hidden_states`` holds the context of a graph."""
        rows = facts.max_requests * _window(facts)
        masks = torch.zeros(rows, dtype=torch.int32, device=facts.device)
        return replace(inputs, token_ids=masks, rope_positions=None, masked_state=None)

    @classmethod
    def refuse_layers(cls, loaded: LoadedDraft, specs: Layers) -> None:
        super().refuse_layers(loaded, specs)
        refuse_windows(specs, cls.causal_layers(loaded), loaded.layers)

    @classmethod
    def causal_layers(cls, loaded: LoadedDraft) -> Collection[str]:
        """As the draft's configuration says, layer by layer."""
        return causal_layers(loaded.model, loaded.facts.draft_model.hf_config)

    @classmethod
    def sizes(cls, facts: DraftFacts, max_model_len: int) -> Sizes:
        return replace(
            super().sizes(facts, max_model_len),
            # The positions of the draft window follow that of the last token.
            later_passes=_window(facts),
            max_tokens=max(facts.max_tokens, facts.max_requests),
            sampled_per_request=1,
            # Except for its tokens, the context has the rows of a head on hidden states.
            shift=True,
            writes_rejected=False,
        )

    @classmethod
    def of(cls, bound: BoundDraft) -> HostStrategy:
        draft, planner, facts = bound.planner.draft, bound.planner, bound.loaded.facts
        assert isinstance(draft, MaskTokensDraft)
        draft.bind_layers()
        plan, needs, mask_token_id = planner.plan, planner.needs, facts.mask_token_id
        return cls(draft, plan, needs, mask_token_id, from_anchor=facts.from_anchor)


def _window(facts: DraftFacts) -> int:
    """Rows of each request's draft window."""
    return facts.num_speculative_tokens + (not facts.from_anchor)


def widen_decodes(builder: Any, more: int, *, shared: bool = False) -> None:
    """Let MLA treat a verified row of the target as a decode in the draft, where it is longer.

    vllm-ascend counts up to K + 1 queries as a decode. A draft model's first pass has ``more``
    queries on top. So each of its proposals would be a prefill with cached context, whose chunks
    are uploaded.

    Args:
        shared: whether ranks share each sequence's keys; then dense layers tell them apart, too.
    """
    if shared or isinstance(builder, AscendMLAMetadataBuilder):
        wide = builder.decode_threshold + more
        if wide <= MOST_QUERIES_OF_A_DECODE:
            builder.decode_threshold = wide


def specs_of(loaded: LoadedDraft) -> Mapping[str, Any]:
    """The KV cache spec of each of the draft's layers."""
    config = loaded.facts.vllm_config
    return {name: layer.get_kv_cache_spec(config) for name, layer in loaded.layers.items()}


def recurrent_layers(loaded: LoadedDraft) -> dict[str, Any]:
    """The draft's layers that keep a recurrent state."""
    specs = specs_of(loaded)
    return {
        name: loaded.layers[name] for name, spec in specs.items() if isinstance(spec, MambaSpec)
    }


def use_draft_recurrent_specs(config: VllmConfig, own: VllmConfig, before: Layers) -> None:
    """Let the draft's recurrent layers take their spec from the draft's own configuration.

    vllm-ascend asks all layers with the target's configuration. If the target has no states, that
    configuration does not describe any.

    Args:
        config: the target's.
        own: the draft's.
        before: recurrent layers that existed before the draft was built.
    """
    for name, layer in get_layers_from_vllm_config(config, MambaBase).items():
        if name not in before:
            layer.get_kv_cache_spec = functools.partial(_recurrent_spec, layer, own)


def _recurrent_spec(layer: Any, config: Any, _target_config: Any) -> Any:
    return type(layer).get_kv_cache_spec(layer, config)


def _eager(config: Any) -> Any:
    """``config`` without graphs, for which builders would fill buffers of their own.

    The draft's graphs have their own block tables.
    """
    eager = copy.copy(config)
    eager.compilation_config = copy.copy(config.compilation_config)
    eager.compilation_config.cudagraph_mode = CUDAGraphMode.NONE
    return eager
