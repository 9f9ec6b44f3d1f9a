# SPDX-License-Identifier: Apache-2.0
"""A draft model as vllm-ascend runs it, for ``mkv_ascend.drafting``."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad
from vllm.forward_context import get_forward_context
from vllm_ascend.ascend_forward_context import _EXTRA_CTX

from mkv_ascend.adapters.common import pipeline
from mkv_ascend.adapters.common.batch_rows import cover_rows
from mkv_ascend.adapters.port import DraftFacts, LoadedDraft, PassHost
from mkv_ascend.drafting.draft import (
    Builder,
    DraftBuffers,
    DraftGroups,
    HiddenStates,
    Metadata,
    PassBatch,
)

if TYPE_CHECKING:
    from torch import nn

JOINS_STATES = ("eagle3",)
"""Methods whose draft joins hidden states of several layers of the target."""


class AscendDraft:
    """``Draft`` whose model is loaded.

    ``groups`` and ``builders`` are known once the KV caches exist.
    """

    groups: DraftGroups
    builders: Sequence[Builder]
    _contexts: contextlib.ExitStack
    _batch: PassBatch | None = None
    """Of the proposal that runs; dummy passes, which all have the same rows, have none."""
    _rows = 0
    """Of the pass that runs."""

    def __init__(self, loaded: LoadedDraft, passes: PassHost, buffers: DraftBuffers) -> None:
        self.loaded, self.passes = loaded, passes
        self.model: Any = loaded.model
        # Nobody else keeps them: what is replaced here is freed.
        self.buffers = buffers
        facts, parallel = loaded.facts, loaded.facts.vllm_config.parallel_config
        self._joins = facts.method in JOINS_STATES
        self._takes_states = facts.takes_states
        self._several_ranks = parallel.data_parallel_size > 1
        self._run_in_stages = parallel.pipeline_parallel_size > 1
        self._set_skip_topk = self._skipping() if facts.reuses_keys else None

    def bind(self, groups: DraftGroups, builders: Sequence[Builder]) -> None:
        """Take the groups of its layers and their builders, once the KV caches exist."""
        self.groups, self.builders = groups, builders

    def run_eagerly(self) -> None:
        """Release the buffer that only graphs need."""
        self.buffers = replace(self.buffers, joined_states=None)

    def share_rows(self, rows: int) -> tuple[int, torch.Tensor | None]:
        return self.passes.share_rows(rows) if self._several_ranks else (rows, None)

    def later_rows(self, input_rows: int, requests: int) -> int:
        in_step = self.passes.in_step and not self.passes.fits_each_pass
        return input_rows if in_step else requests

    def combine(self, states: torch.Tensor) -> torch.Tensor:
        if self._joins:
            states = self.model.combine_hidden_states(states)
        return states.view(states.shape[0], -1)

    def embed(self, rows: int, multimodal: Any = None) -> None:
        if self.buffers.embeddings is not None:
            embeddings, is_multimodal = multimodal or (None, None)
            if is_multimodal is not None and is_multimodal.shape[0] < rows:
                # Rows of padding, of a graph for more requests.
                is_multimodal = pad(is_multimodal, (0, rows - is_multimodal.shape[0]))
            self.buffers.embeddings[:rows] = self.model.embed_input_ids(
                self.buffers.token_ids[:rows],
                multimodal_embeddings=embeddings,
                is_multimodal=is_multimodal,
            )

    @contextlib.contextmanager
    def running(self, metadata: Metadata | None, batch: PassBatch) -> Iterator[None]:
        self._rows = batch.input_rows
        metadata = self._covered(metadata)
        with contextlib.ExitStack() as contexts:
            contexts.enter_context(self.passes.running(metadata, batch))
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
        if self._batch is not None and self.passes.fits_each_pass:
            batch = replace(self._batch, rows=rows, input_rows=rows)
            self._contexts.enter_context(self.passes.running(None, batch))
        self._rows = rows
        _EXTRA_CTX.num_tokens, _EXTRA_CTX.num_accept_tokens = rows, requests

    def _covered(self, metadata: Metadata | None) -> Metadata | None:
        """Have rows written that a pass has only because another rank's has as many."""
        if metadata is None or not self.passes.in_step:
            return metadata
        covered: Metadata = cover_rows(self.loaded.facts.vllm_config, metadata, self._rows)
        return covered

    def forward(self, rows: int, positions: torch.Tensor | None = None) -> HiddenStates:
        if self._set_skip_topk is not None:
            self._set_skip_topk(positions is not None)
        buffers = self.buffers
        if positions is None:
            positions = buffers.positions_of(rows)
        embeddings = buffers.embeddings
        inputs: dict[str, Any] = {
            "input_ids": buffers.token_ids[:rows],
            "positions": positions,
            "inputs_embeds": None if embeddings is None else embeddings[:rows],
        }
        if self._takes_states:
            assert buffers.hidden_states is not None
            inputs["hidden_states"] = buffers.hidden_states[:rows]
        return self.run_model(inputs)

    def run_model(self, inputs: dict[str, Any]) -> HiddenStates:
        """One forward of the model over these rows, in the forward context."""
        with pipeline.whole() if self._run_in_stages else contextlib.nullcontext():
            answer = self.model(**inputs)
        # vllm-ascend 0.23.0 does not know that Gemma 4's head gives two, so it is not asked.
        last, hidden = answer if isinstance(answer, tuple) else (answer, answer)
        return HiddenStates(last, hidden)

    def sample(
        self, states: torch.Tensor, rows: torch.Tensor | slice, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        logits = self.model.compute_logits(states[rows])
        return torch.argmax(logits, dim=-1, out=out)

    def feed_back(
        self, tokens: torch.Tensor, hidden: torch.Tensor, rows: torch.Tensor | slice
    ) -> None:
        requests, buffers = tokens.shape[0], self.buffers
        buffers.token_ids[:requests] = tokens
        if self._takes_states:
            assert buffers.hidden_states is not None
            buffers.hidden_states[:requests] = hidden[rows].view(requests, -1)
        if buffers.embeddings is not None:
            buffers.embeddings[:requests] = self.model.embed_input_ids(buffers.token_ids[:requests])

    def _skipping(self) -> Callable[[bool], None] | None:
        """Lets later passes of some MTP heads reuse the first pass's choice of keys."""
        return getattr(getattr(self.model, "model", None), "set_skip_topk", None)


def takes_images(facts: DraftFacts, model: nn.Module) -> bool:
    """Whether a draft takes embeddings of images, of a target that has them.

    Others draft from token ids alone, which hold a placeholder for each part of an image. A draft
    model and parallel drafting have rows in the first pass that the target has not, and batches
    without padding lack some of its rows; there images are left out, as vLLM does with the former.
    vllm-ascend 0.23.0 asks any draft to embed images, text models too.
    """
    has_other_rows = (
        not facts.takes_states
        or facts.in_parallel
        or facts.vllm_config.speculative_config.disable_padded_drafter_batch
    )
    if has_other_rows:
        return False
    embed: Any = model.embed_input_ids
    return "multimodal_embeddings" in inspect.signature(embed).parameters


def buffer_of_joined_states(
    facts: DraftFacts, model: nn.Module, buffers: DraftBuffers
) -> torch.Tensor | None:
    """The buffer of hidden states that the draft joins in its graphs; None if it joins none.

    It is as large as its largest graph, and made here, so that sizing the KV cache accounts for it.
    """
    if facts.enforce_eager or facts.in_parallel or facts.method not in JOINS_STATES:
        return None
    config = facts.vllm_config.compilation_config
    inner: Any = model.model
    width = getattr(getattr(inner, "fc", None), "input_size", None)
    if width is None or not config.cudagraph_mode.has_full_cudagraphs():
        return None
    rows = facts.max_requests * (facts.num_speculative_tokens + 1)
    assert buffers.hidden_states is not None, "it is a head"
    return buffers.hidden_states.new_zeros((min(rows, config.max_cudagraph_capture_size), width))
