# SPDX-License-Identifier: Apache-2.0
"""Builds the proposals of a draft, for either model runner, and runs them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
import torch_npu
from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
from vllm.distributed.parallel_state import get_dcp_group
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.worker.utils import AttentionGroup
from vllm_ascend.attention.attention_v1 import AscendAttentionState

from mkv_ascend.adapters.common.attention.backends import keep_all_keys
from mkv_ascend.adapters.common.backends.port import Backend, CommonMetadata
from mkv_ascend.adapters.common.drafting.capture import AscendCapturer, why_not_captured
from mkv_ascend.adapters.common.drafting.draft import AscendDraft, buffer_of_joined_states
from mkv_ascend.adapters.common.drafting.host import DraftHost
from mkv_ascend.adapters.common.drafting.kinds_of_drafts import (
    is_replicated,
    keeps_all_indexer_keys,
)
from mkv_ascend.adapters.common.drafting.layer_groups import find_groups, ranks_of_slots
from mkv_ascend.adapters.common.drafting.strategies import (
    BoundDraft,
    HostStrategy,
    TargetKeys,
    recurrent_layers,
    specs_of,
    widen_decodes,
)
from mkv_ascend.adapters.common.graphs import have_readers
from mkv_ascend.adapters.port import BlockTables, DraftFacts, LoadedDraft, PassHost
from mkv_ascend.drafting.context_shares import ContextShares
from mkv_ascend.drafting.counts import Eager
from mkv_ascend.drafting.draft import DraftBuffers, DraftGroups, PassBatch, TargetOutput
from mkv_ascend.drafting.graph_runner import GraphRunner, InStep
from mkv_ascend.drafting.needs import Needs
from mkv_ascend.drafting.plan import DraftPlan
from mkv_ascend.drafting.proposal import Passes, Proposal, run_passes
from mkv_ascend.drafting.recurrent_strategy import RecurrentStrategy
from mkv_ascend.drafting.strategy import AttentionStrategy, Planner

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheConfig


class Assembly:
    """Serves a runner: with a draft once its model is loaded, with a proposal once caches exist.

    Args:
        facts: the draft, as far as it is known before.
        kind: the class of its strategy.
        host: what the host does in its own way.
        passes: the model runner around its passes.
        buffers: inputs of its passes, without embeddings.
    """

    draft: AscendDraft
    proposal: Proposal
    capturer: AscendCapturer
    graphs: GraphRunner | None = None
    given_up = False
    why_eager: str | None = None
    replays_target = False

    def __init__(
        self,
        facts: DraftFacts,
        kind: type[HostStrategy],
        host: DraftHost,
        passes: PassHost,
        buffers: DraftBuffers,
    ) -> None:
        self.facts, self.kind, self.host, self.passes = facts, kind, host, passes
        self._publish: Callable[[], None] = lambda: None
        self.inputs = kind.early_buffers(facts, buffers)

    def model_loaded(
        self,
        model: nn.Module,
        config: VllmConfig,
        layers: Collection[str],
        embeddings: torch.Tensor | None,
        draft_class: type[AscendDraft],
    ) -> None:
        """Take the draft's model.

        Args:
            config: the draft's own.
            layers: names of its layers.
            embeddings: see ``DraftBuffers``.
            draft_class: of drafts, except those of mask tokens.

        Raises:
            NotImplementedError: the draft has layers that cannot be served.
        """
        facts = self.facts
        buffers = replace(
            self.inputs,
            embeddings=embeddings,
            joined_states=buffer_of_joined_states(facts, model, self.inputs),
        )
        own = layers_of(facts.vllm_config, layers)
        loaded = LoadedDraft(facts, model, config, own)
        self.kind.layers_made(loaded, self.host)
        self.kind.refuse_layers(loaded, specs_of(loaded))
        if is_replicated(facts.vllm_config):
            ranks = facts.vllm_config.parallel_config.decode_context_parallel_size
            for layer in own.values():
                keep_all_keys(layer, ranks)
        self.draft = (self.kind.draft_class or draft_class)(loaded, self.passes, buffers)
        del self.inputs

    def bind(self, kv_cache_config: KVCacheConfig, tables: BlockTables) -> list[AttentionGroup]:
        """Sort the draft's layers into groups; make their builders and the proposal.

        vllm-ascend passes only the kernel block size of group 0. Each group takes that of its own
        block table. Returns vLLM's attention group for each of ``draft.groups``.
        """
        facts, draft, loaded = self.facts, self.draft, self.draft.loaded
        kv_cache_groups = kv_cache_config.kv_cache_groups
        recurrent = recurrent_layers(loaded)
        attention = {name: one for name, one in loaded.layers.items() if name not in recurrent}
        ranks = ranks_of_slots(facts.vllm_config, attention)
        block_sizes = [size * ranks for size in tables.block_sizes]
        causal = self.kind.causal_layers(loaded)
        groups = find_groups(attention, kv_cache_groups, block_sizes, causal)
        made = self._attention_groups(groups)
        reads = issubclass(self.kind, TargetKeys) or have_readers(facts.vllm_config, [made])
        states = AscendAttentionState
        common = CommonMetadata(
            states.SpecDecoding if facts.method == "mtp" else states.ChunkedPrefill,
            lengths_on_host=facts.in_parallel,
            reads_caches=reads,
        )
        backends = self._backends(groups, made, common)
        draft.bind(groups, backends)
        plan = DraftPlan(
            self.kind.sizes(facts, self.passes.max_model_len),
            [tables.rows[kv_group] for kv_group in groups.kv_groups],
            groups.block_sizes,
            torch_npu.npu.Event(),
            facts.shares,
        )
        planner = Planner(draft, plan, Needs(groups, backends))
        strategy = self.kind.of(BoundDraft(loaded, planner, kv_cache_groups, common, tables))
        self._extra_cost = strategy.describe()
        self.proposal = Proposal(draft, strategy, plan, planner.needs, self.passes.run)
        self.capturer = AscendCapturer(draft, attention, self.host)
        self.replays_target = self.passes.replays_target()
        runs_along = isinstance(strategy, AttentionStrategy)
        self.why_eager = why_not_captured(draft, backends, self.host, runs_along=runs_along)
        if self.why_eager is None:
            self.graphs = GraphRunner(self.proposal, self.capturer)
        else:
            self.graphs = None
            draft.run_eagerly()
        return made

    def _attention_groups(self, groups: DraftGroups) -> list[AttentionGroup]:
        """vLLM's attention group, with its metadata builder, for each of ``groups``."""
        made = []
        for group in groups.groups:
            names, kv_group = list(group.layer_names), group.kv_group
            attention_group = AttentionGroup(group.backend, names, group.spec, kv_group)
            attention_group.create_metadata_builders(self.facts.vllm_config, self.facts.device)
            made.append(attention_group)
        return made

    def _backends(
        self, groups: DraftGroups, made: list[AttentionGroup], common: CommonMetadata
    ) -> list[Backend]:
        """The backend of each group."""
        backends, facts = [], self.facts
        for group, vllm_group in zip(groups.groups, made, strict=True):
            builder = vllm_group.get_metadata_builder()
            widen_decodes(builder, facts.new_rows, shared=facts.shares is not None)
            with set_current_vllm_config(facts.vllm_config):  # some backends ask it
                of_layers = vllm_group.backend.get_impl_cls()
            given = {"of_layers": of_layers, "group": group, "common": common}
            backends.append(self.host.backend_of(builder, group.spec, **given))
        return backends

    def propose(
        self, target: TargetOutput, tokens: int | None = None, agreed: int | None = None
    ) -> torch.Tensor:
        """Draft K tokens for each of B requests; int64 [B, K].

        Args:
            tokens: where fewer are asked for, their number: then int64 [B, from ``tokens`` to K],
                of which the first ``tokens`` columns count.
            agreed: where the target's step is a verify step on all ranks that run it together,
                in graphs: the most requests of a rank.
        """
        if self.given_up:
            drafts = target.requests, self.facts.num_speculative_tokens
            return target.next_token_ids.new_zeros(drafts, dtype=torch.int64)
        drafted: torch.Tensor | Eager
        drafted = Eager.NOT_CAPTURED if self.replays_target else Eager.NO_FULL_GRAPHS
        if self.graphs is not None:
            in_step = InStep(agreed) if self.passes.in_step else None
            drafted = self.graphs.propose(target, tokens, in_step)
        eager = drafted if isinstance(drafted, Eager) else None
        if isinstance(drafted, Eager):
            drafted = self.proposal.propose(target, tokens)
        count = drafted.shape[1] if tokens is None else tokens
        self.proposal.counts.note(target.requests, count, eager)
        self._publish()
        return drafted

    def give_up(self) -> None:
        """Draft no more: proposals are zeros from now on, and cost nothing."""
        self.given_up = True

    def run_along(self, agreed: int | None) -> torch.Tensor | None:
        """Replay with other ranks where this one has no requests; None: they run eagerly.

        Args:
            agreed: see ``propose``.
        """
        if self.graphs is None or not self.passes.in_step:
            return None
        return self.graphs.run_along(InStep(agreed))

    def publish_with(self, publish: Callable[[], None]) -> None:
        """Call ``publish`` after each proposal."""
        self._publish = publish

    def is_captured(self, num_tokens: int) -> bool:
        """Whether there is a graph for exactly this many tokens of verify steps."""
        requests, rest = divmod(num_tokens, self.facts.num_speculative_tokens + 1)
        graphs = self.graphs
        return not rest and graphs is not None and graphs.shape(requests) in graphs.captured

    def capture(self, num_tokens: int) -> None:
        """Capture if the target was just captured for verify steps of this many tokens."""
        requests, rest = divmod(num_tokens, self.facts.num_speculative_tokens + 1)
        if not rest:
            self.capture_verify_steps(requests)

    def capture_verify_steps(
        self, requests: int, verified: int | None = None, drafted: int | None = None
    ) -> None:
        """Capture for requests that each verify and draft as many tokens; None: K."""
        if self.graphs is not None and requests <= self.facts.max_requests:
            self.graphs.capture(self.graphs.shape(requests, verified, drafted))

    def forget_graphs(self) -> None:
        """Drop the captured graphs; ``bind`` makes place for others."""
        self.graphs = None

    def drop_captured(self) -> None:
        """Drop what was captured; whoever captures next does so anew."""
        if self.graphs is not None:
            self.graphs.captured.clear()

    def describe(self) -> str:
        """The cost of a proposal of this draft, in one or two sentences."""
        proposal, groups = self.proposal, self.draft.groups
        builds = proposal.needs.builds_per_proposal(proposal.strategy.later_passes)
        return (
            f"The draft reads {len(groups.kv_groups)} KV groups ({groups.describe()}). A proposal "
            f"builds attention metadata {builds} times. {self._execution_mode()}"
            f"{self._extra_cost}"
        )

    def to_dict(self) -> dict[str, Any]:
        """The same as plain values for JSON."""
        proposal = self.proposal
        later = proposal.strategy.later_passes
        return {
            "num_speculative_tokens": proposal.strategy.tokens,
            "kv_groups": list(self.draft.groups.kv_groups),
            "passes_per_proposal": 1 + later,
            "metadata_builds_per_proposal": proposal.needs.builds_per_proposal(later),
            "replayed_from_graphs": self.graphs is not None,
            "why_eager": self.why_eager,
        }

    def _execution_mode(self) -> str:
        if self.graphs is None and not self.replays_target:
            return "The draft runs eagerly."
        if self.why_eager:
            return (
                "The draft runs eagerly, though the target is replayed from graphs: "
                f"{self.why_eager}."
            )
        return "Where all requests verify drafts, its passes are replayed from one graph."

    def run_dummy_passes(self, rows: int, requests: int, sampled: torch.Tensor) -> torch.Tensor:
        """The passes of a dummy run: as many as a proposal has, without metadata."""
        facts, draft = self.facts, self.draft
        drafts_first = not issubclass(self.kind, RecurrentStrategy)
        later = 0 if facts.in_parallel else facts.num_speculative_tokens - drafts_first
        none = sampled.new_zeros(0)
        batch = PassBatch(
            index=0, requests=requests, rows=rows, input_rows=rows, rows_across_ranks=None,
            query_start_loc=none, query_start_loc_host=none, longest_row=0, lengths=none,
            host_lengths=none, length_bounds=none, positions=none, slots=(), tables=(),
            common=None,
        )  # fmt: skip
        # They stay in the context that they are run in.
        fits_each_pass = self.passes.fits_each_pass
        later_rows = rows if fits_each_pass else draft.later_rows(rows, requests)
        passes = Passes(
            batch,
            None,
            sampled,
            (draft.buffers.positions_of(later_rows),) * later,
            later_rows,
            lambda: [None] * later,
            sampled=None if drafts_first else sampled[:requests].long(),
        )
        return run_passes(draft, passes)


def context_shares(config: VllmConfig) -> ContextShares | None:
    """How ranks share each sequence's keys of a draft; None if each rank keeps all of them."""
    parallel = config.parallel_config
    ranks = parallel.decode_context_parallel_size
    if ranks == 1 or is_replicated(config) or keeps_all_indexer_keys(config):
        return None
    rank = get_dcp_group().rank_in_group
    return ContextShares(ranks, rank, parallel.cp_kv_cache_interleave_size)


def layers_of(config: VllmConfig, names: Collection[str]) -> dict[str, Any]:
    """The layers with caches of these names, in the order of creation, which is that of running."""
    every = get_layers_from_vllm_config(config, AttentionLayerBase)
    return {name: layer for name, layer in every.items() if name in names}


def rope_positions(buffers: DraftBuffers, positions: torch.Tensor) -> torch.Tensor | None:
    """Positions of the target's tokens on the draft's axes (M-RoPE); None if it has one.

    The axes of a target that has one are alike.
    """
    if buffers.rope_positions is None:
        return None
    return positions.expand(len(buffers.rope_positions), -1)
