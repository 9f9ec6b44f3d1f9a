# SPDX-License-Identifier: Apache-2.0
"""In what a draft's passes run: the forward context of a model runner, in step with other ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from vllm.forward_context import get_forward_context
from vllm_ascend.ascend_forward_context import set_ascend_forward_context
from vllm_ascend.utils import enable_sp, is_drafter_moe_model

from mkv_ascend.drafting.draft import Metadata, PassBatch


class PassContext(Protocol):
    """What a model runner does around a draft's passes. ``proposer``: the host's object."""

    def share_rows(self, proposer: Any, rows: int) -> tuple[int, torch.Tensor | None]:
        """See ``Draft``."""

    def runs_in_step(self, proposer: Any) -> bool:
        """Whether ranks must run equally many rows in each pass."""

    def replays_in_step(self, proposer: Any) -> bool:
        """Whether ranks that run in step know of each other whether all may replay a graph."""

    def fits_each_pass(self, proposer: Any) -> bool:
        """Whether the later passes run in a forward context of their own.

        Ranks that share tokens out pad a pass to as many rows for each, which its context says.
        Rows of no request would do the same, but attention leaves unwritten what it would write
        for them, and experts of other ranks multiply that by 0: what is not a number reaches
        requests.
        """

    def running(
        self, proposer: Any, metadata: Metadata | None, batch: PassBatch
    ) -> AbstractContextManager[None]:
        """See ``Draft``."""


class PassesOfRunnerV1:
    """``PassContext`` of model runner V1."""

    def share_rows(self, proposer: Any, rows: int) -> tuple[int, torch.Tensor | None]:
        """See ``Draft``."""
        input_rows, across_ranks, _mode = proposer.runner._sync_metadata_across_dp(
            rows, is_draft_model=True
        )
        return input_rows, across_ranks

    def runs_in_step(self, proposer: Any) -> bool:
        """See ``PassContext``; without experts, a draft's pass is this rank's own."""
        return self._sends_to_experts(proposer) or self._shares_rows_or_logits(proposer)

    def fits_each_pass(self, proposer: Any) -> bool:
        """See ``PassContext``; ranks of data parallelism would have to agree on rows once more."""
        return proposer.runner.dp_size == 1 and enable_sp(proposer.vllm_config)

    def replays_in_step(self, proposer: Any) -> bool:
        """See ``PassContext``; the graph that they agree on for the target's pass tells it.

        In mode FULL that graph is one for any batch of so many tokens.
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
        """See ``Draft``."""
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
