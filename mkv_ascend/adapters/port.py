# SPDX-License-Identifier: Apache-2.0
"""What a model runner and our proposals tell each other, alike for both model runners.

A proposer of model runner V1 and the speculator of V2 give ``DraftFacts`` and buffers when they are
made, a ``LoadedDraft`` with their model, and ``BlockTables`` once there are caches. What changes
from step to step, ``PassHost`` is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from mkv_ascend.drafting.context_shares import ContextShares
from mkv_ascend.drafting.draft import Draft, Metadata, PassBatch
from mkv_ascend.drafting.proposal import Passes

if TYPE_CHECKING:
    from torch import nn
    from vllm.config import ModelConfig, VllmConfig
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase


@dataclass(frozen=True, kw_only=True)
class DraftFacts:
    """A draft, before its model is loaded.

    Attributes:
        vllm_config: vLLM's, of the target.
        method: of speculative decoding, by vLLM's name.
        num_speculative_tokens: K.
        max_requests: most requests of a batch.
        max_tokens: most rows of a first pass.
        new_rows: rows of a first pass for each request that the target's pass does not have.
        sampled_per_request: rows of a first pass that are sampled from.
        takes_states: whether the draft is a head on the target's hidden states.
        in_parallel: whether the first pass drafts all tokens.
        mask_token_id: token of rows that are drafted in parallel.
        from_anchor: whether the row of the token that the target sampled drafts one, beside masks.
        reuses_keys: whether later passes attend to the keys that the first one has chosen.
        writes_rejected: see ``Sizes``.
        enforce_eager: the value in ``speculative_config``.
        shares: how ranks share each sequence's keys; None if each rank keeps all of them.
    """

    vllm_config: VllmConfig
    method: str
    device: torch.device
    num_speculative_tokens: int
    max_requests: int
    max_tokens: int
    new_rows: int
    takes_states: bool
    in_parallel: bool
    mask_token_id: int
    sampled_per_request: int = 1
    from_anchor: bool = False
    reuses_keys: bool = False
    writes_rejected: bool = False
    enforce_eager: bool = False
    shares: ContextShares | None = None

    @property
    def draft_model(self) -> ModelConfig:
        """vLLM's configuration of the draft's model."""
        return self.vllm_config.speculative_config.draft_model_config


@dataclass(frozen=True)
class LoadedDraft:
    """A draft whose model is loaded.

    Attributes:
        model: vLLM's.
        config: vLLM's, of the draft.
        layers: the draft's layers with caches, in the order in which it runs them.
    """

    facts: DraftFacts
    model: nn.Module
    config: VllmConfig
    layers: Mapping[str, AttentionLayerBase]


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


class PassHost(Protocol):
    """A model runner, around the passes of its draft."""

    @property
    def in_step(self) -> bool:
        """Whether ranks must run equally many rows in each pass."""

    @property
    def fits_each_pass(self) -> bool:
        """Whether the later passes run in a forward context of their own."""

    @property
    def max_model_len(self) -> int:
        """The target's longest context, which vLLM may have shortened to what memory holds."""

    def replays_target(self) -> bool:
        """Whether the target is replayed from graphs."""

    def replays_in_step(self) -> bool:
        """Whether ranks that run in step know of each other whether all may replay a graph."""

    def copied_drafts(self) -> torch.Event | None:
        """Set where draft tokens are copied on a stream of their own; None where none are."""

    def share_rows(self, rows: int) -> tuple[int, torch.Tensor | None]:
        """See ``Draft``; asked where there are several ranks of data parallelism."""

    def running(self, metadata: Metadata | None, batch: PassBatch) -> AbstractContextManager[None]:
        """The forward context of a pass."""

    @property
    def run(self) -> Callable[[Draft, Passes], torch.Tensor]:
        """Runs planned passes, inside their forward context; int64 [B, K]."""
