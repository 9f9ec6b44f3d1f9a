# SPDX-License-Identifier: Apache-2.0
"""In what a draft's passes run on model runner V2."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from vllm.forward_context import BatchDescriptor, set_forward_context
from vllm_ascend.ascend_forward_context import _EXTRA_CTX
from vllm_ascend.utils import is_drafter_moe_model

from mkv_ascend.adapters.common.drafting.draft import PassesOfRunnerV1
from mkv_ascend.drafting.draft import Metadata, PassBatch


class PassesOfRunnerV2(PassesOfRunnerV1):
    """What model runner V2 does around a draft's passes."""

    def share_rows(self, proposer: Any, rows: int) -> tuple[int, torch.Tensor | None]:
        """See ``Draft``; from what ranks agreed on for the target's pass, without asking again.

        vLLM asks all ranks where no rows of theirs are named, so they always are. Without a pass of
        the target, as in a capture, all have as many.
        """
        ranks: int = proposer.dp_size
        if ranks == 1:
            return rows, None
        if proposer.dp_sync is not None and self.runs_in_step(proposer):
            rows = proposer.most_rows_of_a_rank()
        return rows, torch.full((ranks,), rows, dtype=torch.int32)

    def runs_in_step(self, proposer: Any) -> bool:
        """See ``PassesOfRunnerV1``; without experts, a draft's pass is this rank's own."""
        return proposer.dp_size > 1 and is_drafter_moe_model(proposer.vllm_config)

    def fits_each_pass(self, proposer: Any) -> bool:
        """See ``PassesOfRunnerV1``; ranks share no tokens out here."""
        return False

    def replays_in_step(self, proposer: Any) -> bool:
        """See ``PassesOfRunnerV1``; vLLM's ranks agree on what all of their requests verify."""
        return proposer.draft_counts is None and self.runs_in_step(proposer)

    @contextlib.contextmanager
    def running(self, proposer: Any, metadata: Metadata | None, batch: PassBatch) -> Iterator[None]:
        """See ``Draft``."""
        with self.running_rows(proposer, metadata, batch.input_rows, batch.rows_across_ranks):
            yield

    @contextlib.contextmanager
    def running_rows(
        self,
        proposer: Any,
        metadata: Metadata | None,
        rows: int,
        rows_across_ranks: torch.Tensor | None,
    ) -> Iterator[None]:
        """The forward context of a pass of ``rows`` rows; ``rows_across_ranks`` as in a batch."""
        with set_forward_context(
            metadata,
            proposer.vllm_config,
            num_tokens=rows,
            num_tokens_across_dp=rows_across_ranks,
            batch_descriptor=BatchDescriptor(num_tokens=rows),
        ):
            # Launches of MLA are noted apart from the target's by it.
            _EXTRA_CTX.is_draft_model = True
            yield


PASSES = PassesOfRunnerV2()
