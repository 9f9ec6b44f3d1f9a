# SPDX-License-Identifier: Apache-2.0
"""A draft model as vllm-ascend runs it, for ``mkv_ascend.drafting``, and in what its passes run.

That is the forward context of a model runner, in step with other ranks.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn.functional import pad
from vllm.forward_context import get_forward_context
from vllm_ascend.ascend_forward_context import _EXTRA_CTX, set_ascend_forward_context
from vllm_ascend.utils import enable_sp, is_drafter_moe_model

from mkv_ascend.adapters.common import pipeline
from mkv_ascend.adapters.common.batch_rows import cover_rows
from mkv_ascend.drafting.draft import (
    Builder,
    DraftBuffers,
    DraftGroups,
    HiddenStates,
    Metadata,
    PassBatch,
)


class PassesOfRunnerV1:
    """What model runner V1 does around a draft's passes; other runners derive from it.

    ``proposer``: the host's object.
    """

    def share_rows(self, proposer: Any, rows: int) -> tuple[int, torch.Tensor | None]:
        input_rows, across_ranks, _mode = proposer.runner._sync_metadata_across_dp(
            rows, is_draft_model=True
        )
        return input_rows, across_ranks

    def runs_in_step(self, proposer: Any) -> bool:
        """Whether ranks must run equally many rows in each pass.

        Without experts, a draft's pass is this rank's own.
        """
        return self._sends_to_experts(proposer) or self._shares_rows_or_logits(proposer)

    def fits_each_pass(self, proposer: Any) -> bool:
        """Whether the later passes run in a forward context of their own.

        Ranks that share tokens out pad a pass to as many rows for each, which its context says.
        Rows of no request would do the same, but attention leaves unwritten what it would write
        for them, and experts of other ranks multiply that by 0: what is not a number reaches
        requests. Ranks of data parallelism would have to agree on rows once more.
        """
        return proposer.runner.dp_size == 1 and enable_sp(proposer.vllm_config)

    def replays_in_step(self, proposer: Any) -> bool:
        """Whether ranks that run in step know of each other whether all may replay a graph.

        The graph that they agree on for the target's pass tells it. In mode FULL that graph is one
        for any batch of so many tokens.
        """
        mode = proposer.runner.compilation_config.cudagraph_mode
        tells: bool = mode.separate_routine()
        alone = self._sends_to_experts(proposer) and not self._shares_rows_or_logits(proposer)
        return tells and alone

    @staticmethod
    def _sends_to_experts(proposer: Any) -> bool:
        return proposer.runner.dp_size > 1 and is_drafter_moe_model(proposer.vllm_config)

    @staticmethod
    def _shares_rows_or_logits(proposer: Any) -> bool:
        splits = proposer.runner.dp_size > 1 and proposer.draft_host.splits_vocabulary()
        return splits or enable_sp(proposer.vllm_config)

    @contextlib.contextmanager
    def running(self, proposer: Any, metadata: Metadata | None, batch: PassBatch) -> Iterator[None]:
        runner = proposer.runner
        heat = runner.eplb_heat_collection_status if runner.dynamic_eplb else False
        with set_ascend_forward_context(
            metadata,
            proposer.vllm_config,
            num_tokens=batch.input_rows,
            num_tokens_across_dp=batch.rows_across_ranks,
            num_actual_tokens=batch.rows,
            is_draft_model=True,
            eplb_heat_collection_status=heat,
        ):
            get_forward_context().moe_layer_index = 0
            yield


JOINS_STATES = ("eagle3",)
"""Methods whose draft joins hidden states of several layers of the target."""


class AscendDraft:
    """``Draft`` of a proposer of vllm-ascend whose model is loaded.

    ``groups`` and ``builders`` are known once the KV caches exist.
    """

    groups: DraftGroups
    builders: Sequence[Builder]
    _contexts: contextlib.ExitStack
    _batch: PassBatch | None = None
    """Of the proposal that runs; dummy passes, which all have the same rows, have none."""
    _rows = 0
    """Of the pass that runs."""

    def __init__(self, proposer: Any, buffers: DraftBuffers) -> None:
        self._proposer = proposer
        self._passes: PassesOfRunnerV1 = proposer.draft_host.passes
        self.buffers = buffers
        self._embeds: bool = proposer.supports_mm_inputs
        self._takes_states: bool = proposer.pass_hidden_states_to_model

    def bind(self, groups: DraftGroups, builders: Sequence[Builder]) -> None:
        """Take the groups of its layers and their builders, once the KV caches exist."""
        self.groups, self.builders = groups, builders

    def run_eagerly(self) -> None:
        """Release the buffer that only graphs need."""
        self.buffers = replace(self.buffers, joined_states=None)

    def share_rows(self, rows: int) -> tuple[int, torch.Tensor | None]:
        return self._passes.share_rows(self._proposer, rows)

    def later_rows(self, input_rows: int, requests: int) -> int:
        in_step = self.runs_in_step() and not self.fits_each_pass()
        return input_rows if in_step else requests

    def fits_each_pass(self) -> bool:
        """Whether the later passes of a proposal run in a context of their own."""
        return self._passes.fits_each_pass(self._proposer)

    def runs_in_step(self) -> bool:
        """Whether ranks must run equally many rows in each pass."""
        return self._passes.runs_in_step(self._proposer)

    def replays_in_step(self) -> bool:
        """Whether ranks that run in step agree on the graph that each of them replays."""
        return self._passes.replays_in_step(self._proposer)

    def shares_sequences(self) -> bool:
        """Whether each rank keeps a share of a sequence's keys."""
        return self._proposer.draft_host.shares_of(self._proposer.runner) is not None

    def combine(self, states: torch.Tensor) -> torch.Tensor:
        if self._proposer.method in JOINS_STATES:
            states = self._proposer.model.combine_hidden_states(states)
        return states.view(states.shape[0], -1)

    def embed(self, rows: int, multimodal: Any = None) -> None:
        if self._embeds:
            embeddings, is_multimodal = multimodal or (None, None)
            if is_multimodal is not None and is_multimodal.shape[0] < rows:
                # Rows of padding, of a graph for more requests.
                is_multimodal = pad(is_multimodal, (0, rows - is_multimodal.shape[0]))
            self._proposer.inputs_embeds[:rows] = self._proposer.model.embed_input_ids(
                self.buffers.token_ids[:rows],
                multimodal_embeddings=embeddings,
                is_multimodal=is_multimodal,
            )

    @contextlib.contextmanager
    def running(self, metadata: Metadata | None, batch: PassBatch) -> Iterator[None]:
        self._rows = batch.input_rows
        metadata = self._covered(metadata)
        with contextlib.ExitStack() as contexts:
            contexts.enter_context(self._passes.running(self._proposer, metadata, batch))
            self._contexts, self._batch = contexts, batch
            try:
                yield
            finally:
                self._batch = None

    def use(self, metadata: Metadata | None) -> None:
        context: Any = get_forward_context()
        context.moe_layer_index = 0
        context.attn_metadata = self._covered(metadata)

    def begin_later_passes(self, rows: int, requests: int) -> None:
        if self._batch is not None and self.fits_each_pass():
            batch = replace(self._batch, rows=rows, input_rows=rows)
            self._contexts.enter_context(self._passes.running(self._proposer, None, batch))
        self._rows = rows
        _EXTRA_CTX.num_tokens, _EXTRA_CTX.num_accept_tokens = rows, requests

    def _covered(self, metadata: Metadata | None) -> Metadata | None:
        """Have rows written that a pass has only because another rank's has as many."""
        if metadata is None or not self.runs_in_step():
            return metadata
        covered: Metadata = cover_rows(self._proposer.vllm_config, metadata, self._rows)
        return covered

    def forward(self, rows: int, positions: torch.Tensor | None = None) -> HiddenStates:
        proposer = self._proposer
        self._skip_topk(positions is not None)
        if positions is None:
            positions = proposer._get_positions(rows)
        inputs: dict[str, Any] = {"input_ids": self.buffers.token_ids[:rows]}
        if self._takes_states:
            states, positions = self.share_of_rank(proposer.hidden_states[:rows], positions)
            inputs["hidden_states"] = states
        embeds = proposer.inputs_embeds[:rows] if self._embeds else None
        with pipeline.whole():
            answer = proposer.model(positions=positions, inputs_embeds=embeds, **inputs)
        # vllm-ascend 0.23.0 does not know that Gemma 4's head gives two, so it is not asked.
        last, hidden = answer if isinstance(answer, tuple) else (answer, answer)
        return self.of_all_ranks(HiddenStates(last, hidden), positions)

    def share_of_rank(
        self, states: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of hidden states and positions that this rank runs; all of them by default."""
        return states, positions

    def of_all_ranks(self, states: HiddenStates, positions: torch.Tensor) -> HiddenStates:
        """Hidden states of all rows, from those that this rank has run."""
        return states

    def sample(
        self, states: torch.Tensor, rows: torch.Tensor | slice, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        logits = self._proposer.model.compute_logits(states[rows])
        return torch.argmax(logits, dim=-1, out=out)

    def feed_back(
        self, tokens: torch.Tensor, hidden: torch.Tensor, rows: torch.Tensor | slice
    ) -> None:
        requests = tokens.shape[0]
        self.buffers.token_ids[:requests] = tokens
        if self._takes_states:
            self._proposer.hidden_states[:requests] = hidden[rows].view(requests, -1)
        if self._embeds:
            self._proposer.inputs_embeds[:requests] = self._proposer.model.embed_input_ids(
                self.buffers.token_ids[:requests]
            )

    def _skip_topk(self, skip: bool) -> None:
        """Let later passes of some MTP heads reuse the first pass's choice of keys."""
        inner: Any = getattr(self._proposer.model, "model", None)
        if self._proposer._share_mtp_indices and hasattr(inner, "set_skip_topk"):
            inner.set_skip_topk(skip)


def takes_images(proposer: Any) -> bool:
    """Whether a draft that is loaded takes the target's embeddings of images.

    Others draft from token ids alone, which hold a placeholder for each part of an image. A draft
    model and parallel drafting have rows in the first pass that the target has not, and batches
    without padding lack some of its rows; there images are left out, as vLLM does with the former.
    vllm-ascend 0.23.0 asks any draft to embed images, text models too.
    """
    has_other_rows = (
        not proposer.pass_hidden_states_to_model
        or proposer.parallel_drafting
        or proposer.speculative_config.disable_padded_drafter_batch
    )
    if has_other_rows or not proposer.supports_mm_inputs:
        return False
    embed = proposer.model.embed_input_ids
    return "multimodal_embeddings" in inspect.signature(embed).parameters


def buffers_of(proposer: Any, enforce_eager: bool) -> DraftBuffers:
    """The buffers of a proposer whose model is loaded.

    The buffer for its largest graph is allocated here, so that sizing the KV cache accounts for it.
    """
    several = proposer.uses_mrope
    takes_states = proposer.pass_hidden_states_to_model
    return DraftBuffers(
        token_ids=proposer.input_ids,
        positions=torch.zeros_like(proposer.input_ids) if several else proposer.positions,
        sample_rows=proposer.token_indices_to_sample,
        rope_positions=proposer.mrope_positions if several else None,
        hidden_states=proposer.hidden_states if takes_states else None,
        masked_state=proposer.parallel_drafting_hidden_state_tensor if takes_states else None,
        joined_states=None if enforce_eager else _buffer_of_joined_states(proposer),
    )


def _buffer_of_joined_states(proposer: Any) -> torch.Tensor | None:
    """The buffer of hidden states that the draft joins in its graphs; None if it joins none."""
    config = proposer.runner.compilation_config
    if proposer.method not in JOINS_STATES or proposer.parallel_drafting:
        return None
    width = getattr(getattr(proposer.model.model, "fc", None), "input_size", None)
    if width is None or not config.cudagraph_mode.has_full_cudagraphs():
        return None
    rows = proposer.max_batch_size * (proposer.num_speculative_tokens + 1)
    made: torch.Tensor = proposer.hidden_states.new_zeros(
        (min(rows, config.max_cudagraph_capture_size), width)
    )
    return made
