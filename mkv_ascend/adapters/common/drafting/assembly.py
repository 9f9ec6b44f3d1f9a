# SPDX-License-Identifier: Apache-2.0
"""Builds a proposal for one proposer of vllm-ascend, and translates between the two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch_npu
from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.worker.utils import AttentionGroup
from vllm_ascend.attention.attention_v1 import AscendAttentionState

from mkv_ascend.adapters.common.attention.backends import keep_all_keys
from mkv_ascend.adapters.common.backends.port import Backend
from mkv_ascend.adapters.common.drafting.capture import AscendCapturer, why_not_captured
from mkv_ascend.adapters.common.drafting.common_metadata import CommonMetadata
from mkv_ascend.adapters.common.drafting.draft import AscendDraft
from mkv_ascend.adapters.common.drafting.host import DraftHost
from mkv_ascend.adapters.common.drafting.kinds_of_drafts import is_replicated
from mkv_ascend.adapters.common.drafting.layer_groups import find_groups, ranks_of_slots
from mkv_ascend.adapters.common.drafting.strategies import (
    BlockTables,
    BoundDraft,
    HostStrategy,
    TargetKeys,
    recurrent_layers,
    widen_decodes,
)
from mkv_ascend.adapters.common.graphs import have_readers
from mkv_ascend.drafting.counts import Eager
from mkv_ascend.drafting.draft import Draft, DraftGroups, PassBatch, TargetOutput
from mkv_ascend.drafting.graph_runner import GraphRunner, InStep
from mkv_ascend.drafting.needs import Needs
from mkv_ascend.drafting.passes import Passes, run_passes
from mkv_ascend.drafting.plan import DraftPlan
from mkv_ascend.drafting.planner import Planner
from mkv_ascend.drafting.proposal import Proposal
from mkv_ascend.drafting.recurrent_strategy import RecurrentStrategy
from mkv_ascend.drafting.strategy import AttentionStrategy


class Assembly:
    """Serves a proposer: with a draft once its model is loaded, with a proposal once caches exist.

    Args:
        proposer: vllm-ascend's proposer, with members of ours.
        kind: the class of its strategy.
        host: what the host does in its own way.
        enforce_eager: the value in ``speculative_config``.
    """

    draft: AscendDraft
    proposal: Proposal
    capturer: AscendCapturer
    graphs: GraphRunner | None = None
    given_up = False
    why_eager: str | None = None

    def __init__(
        self, proposer: Any, kind: type[HostStrategy], host: DraftHost, *, enforce_eager: bool
    ) -> None:
        self.proposer, self.kind, self.host = proposer, kind, host
        self.enforce_eager = enforce_eager
        self._publish: Callable[[], None] = lambda: None
        self._early_buffers = kind.early_buffers(proposer)

    def layers(self) -> dict[str, Any]:
        """The draft's layers with caches, in the order of creation, which is that of execution."""
        every = get_layers_from_vllm_config(self.proposer.vllm_config, AttentionLayerBase)
        mine = self.proposer._draft_attn_layer_names
        return {name: layer for name, layer in every.items() if name in mine}

    def specs(self, layers: dict[str, Any]) -> dict[str, Any]:
        """The KV cache spec of each of these layers."""
        config = self.proposer.vllm_config
        return {name: layer.get_kv_cache_spec(config) for name, layer in layers.items()}

    def model_loaded(self) -> None:
        """Take the draft's model.

        Raises:
            NotImplementedError: the draft has layers that cannot be served.
        """
        layers = self.layers()
        self.kind.layers_made(self.proposer, layers)
        self.kind.refuse_layers(self.proposer, layers, self.specs(layers))
        if is_replicated(self.proposer.vllm_config):
            ranks = self.proposer.vllm_config.parallel_config.decode_context_parallel_size
            for layer in layers.values():
                keep_all_keys(layer, ranks)
        self.proposer.attn_layer_names = list(layers)
        self.draft = self.kind.draft(
            self.proposer, self._early_buffers, enforce_eager=self.enforce_eager
        )

    def bind(self, kv_cache_config: Any, tables: BlockTables) -> None:
        """Sort the draft's layers into groups; make their builders and the proposal.

        vllm-ascend passes only the kernel block size of group 0. Each group takes that of its own
        block table.
        """
        proposer, draft = self.proposer, self.draft
        kv_cache_groups = kv_cache_config.kv_cache_groups
        layers = self.layers()
        recurrent = recurrent_layers(layers, self.specs(layers))
        attention = {name: layer for name, layer in layers.items() if name not in recurrent}
        ranks = ranks_of_slots(proposer.vllm_config, attention)
        block_sizes = [size * ranks for size in tables.block_sizes]
        causal = self.kind.causal_layers(proposer)
        groups = find_groups(attention, kv_cache_groups, block_sizes, causal)
        made = proposer.draft_attn_groups = self._attention_groups(groups)
        proposer.kv_cache_gid = groups.kv_groups[0]
        proposer.block_size = proposer.kernel_block_size = groups.block_sizes[0]
        reads = issubclass(self.kind, TargetKeys) or have_readers(proposer.vllm_config, [made])
        states = AscendAttentionState
        common = CommonMetadata(
            states.SpecDecoding if proposer.method == "mtp" else states.ChunkedPrefill,
            lengths_on_host=proposer.parallel_drafting,
            reads_caches=reads,
        )
        shares = self.host.shares_of(proposer.runner)
        backends = self._backends(groups, made, common, shared=shares is not None)
        draft.bind(groups, backends)
        plan = DraftPlan(
            self.kind.sizes(proposer),
            [tables.rows[kv_group] for kv_group in groups.kv_groups],
            groups.block_sizes,
            torch_npu.npu.Event(),
            shares,
        )
        planner = Planner(draft, plan, Needs(groups, backends))
        bound = BoundDraft(proposer, planner, kv_cache_groups, common, tables)
        strategy = self.kind.of(bound)
        self._extra_cost = strategy.describe()
        self.proposal = Proposal(draft, strategy, plan, planner.needs, self._run)
        self.capturer = AscendCapturer(proposer, draft, attention, self.host)
        self.why_eager = why_not_captured(
            proposer,
            draft,
            backends,
            enforce_eager=self.enforce_eager,
            runs_along=isinstance(strategy, AttentionStrategy),
        )
        if self.why_eager is None:
            self.graphs = GraphRunner(self.proposal, self.capturer)
        else:
            self.graphs = None
            draft.run_eagerly()

    def _attention_groups(self, groups: DraftGroups) -> list[AttentionGroup]:
        """vLLM's attention group, with its metadata builder, for each of ``groups``."""
        made = []
        for group in groups.groups:
            names, kv_group = list(group.layer_names), group.kv_group
            attention_group = AttentionGroup(group.backend, names, group.spec, kv_group)
            attention_group.create_metadata_builders(
                self.proposer.vllm_config, self.proposer.device
            )
            made.append(attention_group)
        return made

    def _backends(
        self,
        groups: DraftGroups,
        made: list[AttentionGroup],
        common: CommonMetadata,
        *,
        shared: bool,
    ) -> list[Backend]:
        """The backend of each group; ``shared``: whether ranks share each sequence's keys."""
        backends = []
        for group, vllm_group in zip(groups.groups, made, strict=True):
            builder = vllm_group.get_metadata_builder()
            widen_decodes(builder, self.proposer.net_num_new_slots_per_request, shared=shared)
            with set_current_vllm_config(self.proposer.vllm_config):  # some backends ask it
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
            drafts = target.requests, self.proposer.num_speculative_tokens
            return target.next_token_ids.new_zeros(drafts, dtype=torch.int64)
        drafted: torch.Tensor | Eager = self._without_graphs
        if self.graphs is not None:
            in_step = InStep(agreed) if self.draft.runs_in_step() else None
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
        if self.graphs is None or not self.draft.runs_in_step():
            return None
        return self.graphs.run_along(InStep(agreed))

    def publish_with(self, publish: Callable[[], None]) -> None:
        """Call ``publish`` after each proposal."""
        self._publish = publish

    @property
    def _without_graphs(self) -> Eager:
        """Why all proposals run eagerly."""
        return Eager.NOT_CAPTURED if self.proposer.runner._use_aclgraph() else Eager.NO_FULL_GRAPHS

    def is_captured(self, num_tokens: int) -> bool:
        """Whether there is a graph for exactly this many tokens of verify steps."""
        requests, rest = divmod(num_tokens, self.proposer.num_speculative_tokens + 1)
        graphs = self.graphs
        return not rest and graphs is not None and graphs.shape(requests) in graphs.captured

    def capture(self, num_tokens: int) -> None:
        """Capture if the target was just captured for verify steps of this many tokens."""
        requests, rest = divmod(num_tokens, self.proposer.num_speculative_tokens + 1)
        if not rest:
            self.capture_verify_steps(requests)

    def capture_verify_steps(
        self, requests: int, verified: int | None = None, drafted: int | None = None
    ) -> None:
        """Capture for requests that each verify and draft as many tokens; None: K."""
        if self.graphs is not None and requests <= self.proposer.max_batch_size:
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
        if self.graphs is None and not self.proposer.runner._use_aclgraph():
            return "The draft runs eagerly."
        if self.why_eager:
            return (
                "The draft runs eagerly, though the target is replayed from graphs: "
                f"{self.why_eager}."
            )
        return "Where all requests verify drafts, its passes are replayed from one graph."

    def _run(self, draft: Draft, passes: Passes) -> torch.Tensor:
        """Run planned passes; by vllm-ascend's own loop if other ranks split the vocabulary.

        That loop takes the metadata of all passes beforehand.
        """
        if not self.host.splits_vocabulary():
            return run_passes(draft, passes)
        batch, proposer = passes.batch, self.proposer
        drafted: torch.Tensor = proposer._runnable(
            num_input_tokens=batch.input_rows,
            batch_size=batch.requests,
            token_indices_to_sample=passes.sample_rows,
            target_positions=None,
            inputs_embeds=(
                proposer.inputs_embeds[: batch.input_rows] if proposer.supports_mm_inputs else None
            ),
            multi_steps_attn_metadata=[passes.first, *passes.later()],
            num_tokens=batch.rows,
        )
        return drafted


def target_output(proposer: Any, given: dict[str, Any]) -> TargetOutput:
    """The output of the target's step, from the arguments of vllm-ascend's ``_propose``."""
    common, next_token_ids = given["common_attn_metadata"], given["next_token_ids"]
    token_ids, positions = given["target_token_ids"], given["target_positions"]
    requests = next_token_ids.shape[0]
    lengths = host_lengths(common)[:requests]
    bounds = common.seq_lens_cpu_upper_bound
    images = None
    if proposer.supports_mm_inputs:
        # A head's rows are the target's next tokens. vLLM's runner hands these over, and
        # vllm-ascend's, which replaces it, does not.
        scheduled = given["scheduler_output"]
        images = proposer.runner._gather_mm_embeddings(scheduled, shift_computed_tokens=1)
    return TargetOutput(
        token_ids=token_ids,
        # Slots and lengths follow positions in the sequence, and M-RoPE has others.
        positions=common.positions[: token_ids.shape[0]] if positions.dim() > 1 else positions,
        next_token_ids=next_token_ids,
        hidden_states=given["target_hidden_states"],
        num_rejected=given.get("num_rejected_tokens_gpu"),
        query_start_loc=common.query_start_loc[: requests + 1],
        query_start_loc_host=common.query_start_loc_cpu[: requests + 1],
        host_lengths=lengths,
        length_bounds=lengths if bounds is None else bounds[:requests],
        longest_row=common.max_query_len,
        rope_positions=rope_positions(proposer, positions),
        multimodal=images,
        common=common,
    )


def rope_positions(proposer: Any, positions: torch.Tensor) -> torch.Tensor | None:
    """Positions of the target's tokens on the draft's axes (M-RoPE); None if it has one.

    The axes of a target that has one are alike.
    """
    if not proposer.uses_mrope:
        return None
    return positions.expand(len(proposer.mrope_positions), -1)


def host_lengths(common: Any) -> torch.Tensor:
    """Lengths of the target's pass on the host; vllm-ascend keeps them exact for its builders."""
    lengths: torch.Tensor | None = common._seq_lens_cpu
    if lengths is None:
        lengths = common.seq_lens_cpu
    assert lengths is not None, "vllm-ascend hands over lengths on the host in every mode"
    return lengths


def run_dummy_passes(
    proposer: Any, rows: int, requests: int, sampled: torch.Tensor
) -> torch.Tensor:
    """The passes of a dummy run: as many as a proposal has, without metadata."""
    assembly: Assembly = proposer.assembly
    draft, drafts_first = assembly.draft, not issubclass(assembly.kind, RecurrentStrategy)
    later = 0 if proposer.parallel_drafting else proposer.num_speculative_tokens - drafts_first
    none = sampled.new_zeros(0)
    batch = PassBatch(
        index=0, requests=requests, rows=rows, input_rows=rows, rows_across_ranks=None,
        query_start_loc=none, query_start_loc_host=none, longest_row=0, lengths=none,
        host_lengths=none, length_bounds=none, positions=none, slots=(), tables=(), common=None,
    )  # fmt: skip
    # They stay in the context that they are run in.
    later_rows = rows if draft.fits_each_pass() else draft.later_rows(rows, requests)
    passes = Passes(
        batch,
        None,
        sampled,
        (proposer._get_positions(later_rows),) * later,
        later_rows,
        lambda: [None] * later,
        sampled=None if drafts_first else sampled[:requests].long(),
    )
    return run_passes(draft, passes)
