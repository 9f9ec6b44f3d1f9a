# SPDX-License-Identifier: Apache-2.0
"""The strategies of drafting, with what each asks of a proposer of vllm-ascend before it drafts.

A proposer's class and its strategy are chosen by the method (``proposers.py``).
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from vllm.config import CUDAGraphMode, get_layers_from_vllm_config
from vllm.model_executor.layers.mamba.abstract import MambaBase
from vllm.v1.kv_cache_interface import MambaSpec
from vllm_ascend.attention.mla_v1 import AscendMLAMetadataBuilder

from mkv_ascend.adapters.common.drafting.common_metadata import CommonMetadata
from mkv_ascend.adapters.common.drafting.draft import AscendDraft, buffers_of
from mkv_ascend.adapters.common.drafting.draft_config import builder_config
from mkv_ascend.adapters.common.drafting.layer_groups import (
    find_recurrent_groups,
    refuse_recurrent_layers,
    refuse_unknown_kinds,
)
from mkv_ascend.adapters.common.drafting.mask_tokens import (
    MaskTokensDraft,
    causal_layers,
    mask_tokens_buffers,
    refuse_windows,
)
from mkv_ascend.adapters.common.drafting.target_parts import read_keys_of_the_target
from mkv_ascend.drafting.draft import DraftBuffers
from mkv_ascend.drafting.mask_tokens_strategy import MaskTokensStrategy
from mkv_ascend.drafting.plan import Sizes
from mkv_ascend.drafting.planner import Planner
from mkv_ascend.drafting.recurrent_groups import RecurrentGroups
from mkv_ascend.drafting.recurrent_strategy import RecurrentStrategy
from mkv_ascend.drafting.strategy import AttentionStrategy, Strategy

MOST_QUERIES_OF_A_DECODE = 16
"""Limit of npu_fused_infer_attention_score for MLA in the TND layout (its docs; mla_v1.py)."""

Layers = Mapping[str, Any]


@dataclass(frozen=True)
class BlockTables:
    """The engine's block tables, one per KV group.

    Attributes:
        rows: int32 [max requests, columns], a row for each request in the order of the batch. Their
            addresses never change.
        block_sizes: tokens in a block of each.
    """

    rows: Sequence[torch.Tensor]
    block_sizes: Sequence[int]


@dataclass(frozen=True)
class BoundDraft:
    """A draft whose layers lie in KV groups.

    Attributes:
        proposer: vllm-ascend's proposer.
        planner: plans the passes of its draft.
        kv_cache_groups: vLLM's KV groups of the engine.
        common: makes the input that metadata builders share.
        tables: the engine's block tables.
    """

    proposer: Any
    planner: Planner
    kv_cache_groups: Any
    common: CommonMetadata
    tables: BlockTables


class HostStrategy(Strategy):
    """A strategy with what a proposer needs before it has one: the base serves attention layers."""

    @classmethod
    def early_buffers(cls, proposer: Any) -> DraftBuffers | None:
        """Buffers that must not lie among weights: sleep mode of level 2 takes their memory away.

        They are made with the proposer, if there are any.
        """
        return None

    @classmethod
    def layers_made(cls, proposer: Any, layers: Layers) -> None:
        """Change the draft's layers before the engine asks them for their caches."""

    @classmethod
    def refuse_layers(cls, proposer: Any, layers: Layers, specs: Layers) -> None:
        """Raise NotImplementedError for layers that cannot be served."""
        refuse_recurrent_layers(specs)

    @classmethod
    def causal_layers(cls, proposer: Any) -> Collection[str]:
        """Names of layers that see no later row of a block of mask tokens."""
        return ()

    @classmethod
    def draft(
        cls, proposer: Any, early: DraftBuffers | None, *, enforce_eager: bool
    ) -> AscendDraft:
        """The draft of a proposer whose model is loaded; ``early``: see ``early_buffers``."""
        made: AscendDraft = proposer.draft_host.draft(proposer, buffers_of(proposer, enforce_eager))
        return made

    @classmethod
    def sizes(cls, proposer: Any) -> Sizes:
        """Limits of the draft."""
        parallel = proposer.parallel_drafting
        return Sizes(
            later_passes=0 if parallel else proposer.num_speculative_tokens - 1,
            max_requests=proposer.max_batch_size,
            max_tokens=proposer.input_ids.shape[0],
            # Longer sequences continue with useless drafts, but never read past the end of the
            # draft's rotary tables.
            max_model_len=min(proposer.max_model_len, proposer.draft_model_config.max_model_len),
            sampled_per_request=proposer.extra_slots_per_request,
            shift=proposer.pass_hidden_states_to_model,
            parallel_token_id=proposer.parallel_drafting_token_id,
            # DeepSeek-V4's blocks alternately hold states in float32 and keys in bfloat16. On model
            # runner V2, which has no such attribute, planned blocks are zeroed before they are used
            # again, and vllm-ascend's own caches share no bytes.
            writes_rejected=getattr(proposer.runner, "use_compress", False),
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
    def layers_made(cls, proposer: Any, layers: Layers) -> None:
        read_keys_of_the_target(proposer, layers)

    @classmethod
    def sizes(cls, proposer: Any) -> Sizes:
        return replace(super().sizes(proposer), keeps_position=True)


class Recurrent(RecurrentStrategy, HostStrategy):
    """Draft models with recurrent layers."""

    @classmethod
    def refuse_layers(cls, proposer: Any, layers: Layers, specs: Layers) -> None:
        """Attention layers are served."""
        refuse_unknown_kinds(recurrent_layers(layers, specs), proposer.num_speculative_tokens)

    @classmethod
    def sizes(cls, proposer: Any) -> Sizes:
        """The first pass has the target's rows, as a head on hidden states has; it drafts none."""
        later = proposer.num_speculative_tokens
        sizes = super().sizes(proposer)
        return replace(sizes, later_passes=later, sampled_per_request=1, shift=True)

    @classmethod
    def of(cls, bound: BoundDraft) -> HostStrategy:
        proposer = bound.proposer
        layers = proposer.assembly.layers()
        find = functools.partial(
            find_recurrent_groups,
            recurrent_layers(layers, proposer.assembly.specs(layers)),
            bound.kv_cache_groups,
            _eager(builder_config(proposer._create_draft_vllm_config())),
            proposer.device,
            bound.common,
        )
        groups, tables = find(), bound.tables.rows
        states = RecurrentGroups(
            groups,
            [tables[group.kv_group] for group in groups],
            proposer.max_batch_size,
            proposer.num_speculative_tokens,
        )
        return cls(bound.planner, states, lambda requests: states.for_graph(find(), requests))

    def describe(self) -> str:
        groups, needs = self.states.groups, self.states.needs
        return (
            f" {sum(len(group.layers) for group in groups)} layers keep a recurrent state, in "
            f"{len(groups)} KV groups: one pass more, and {2 * len(needs)} times metadata more."
        )


class MaskTokens(MaskTokensStrategy, HostStrategy):
    """Method dflash."""

    draft_class: type[MaskTokensDraft] = MaskTokensDraft

    @classmethod
    def early_buffers(cls, proposer: Any) -> DraftBuffers | None:
        """The buffer of token ids holds the masks of all passes."""
        return mask_tokens_buffers(proposer)

    @classmethod
    def drafts_from_anchor(cls, proposer: Any) -> bool:
        """Whether the row of the token that the target sampled drafts a token."""
        return False

    @classmethod
    def refuse_layers(cls, proposer: Any, layers: Layers, specs: Layers) -> None:
        super().refuse_layers(proposer, layers, specs)
        refuse_windows(specs, cls.causal_layers(proposer), layers)

    @classmethod
    def causal_layers(cls, proposer: Any) -> Collection[str]:
        """As the draft's configuration says, layer by layer."""
        return causal_layers(proposer.model, proposer.draft_model_config.hf_config)

    @classmethod
    def draft(
        cls, proposer: Any, early: DraftBuffers | None, *, enforce_eager: bool
    ) -> AscendDraft:
        assert early is not None, "they are made with the proposer"
        return cls.draft_class(proposer, early)

    @classmethod
    def sizes(cls, proposer: Any) -> Sizes:
        sizes = super().sizes(proposer)
        return replace(
            sizes,
            # The positions of the draft window follow that of the last token.
            later_passes=proposer.num_speculative_tokens + (not cls.drafts_from_anchor(proposer)),
            max_tokens=max(sizes.max_tokens, sizes.max_requests),
            sampled_per_request=1,
            # Except for its tokens, the context has the rows of a head on hidden states.
            shift=True,
            writes_rejected=False,
        )

    @classmethod
    def of(cls, bound: BoundDraft) -> HostStrategy:
        draft, planner = bound.planner.draft, bound.planner
        assert isinstance(draft, MaskTokensDraft)
        draft.bind_layers()
        mask_token_id = bound.proposer.parallel_drafting_token_id
        from_anchor = cls.drafts_from_anchor(bound.proposer)
        return cls(draft, planner.plan, planner.needs, mask_token_id, from_anchor=from_anchor)


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


def recurrent_layers(layers: Layers, specs: Layers) -> dict[str, Any]:
    """The draft's layers that keep a recurrent state."""
    return {name: layers[name] for name, spec in specs.items() if isinstance(spec, MambaSpec)}


def use_draft_recurrent_specs(proposer: Any, before: Layers) -> None:
    """Let the draft's recurrent layers take their spec from the draft's own configuration.

    vllm-ascend asks all layers with the target's configuration. If the target has no states, that
    configuration does not describe any.

    Args:
        before: recurrent layers that existed before the draft was built.
    """
    own = proposer._create_draft_vllm_config()
    for name, layer in get_layers_from_vllm_config(proposer.vllm_config, MambaBase).items():
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
