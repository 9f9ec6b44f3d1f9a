# SPDX-License-Identifier: Apache-2.0
"""A draft as model runner V2 runs it, and in what its passes run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from vllm.forward_context import BatchDescriptor, set_forward_context
from vllm_ascend.ascend_forward_context import _EXTRA_CTX
from vllm_ascend.utils import is_drafter_moe_model

from mkv_ascend.adapters.common import pipeline
from mkv_ascend.adapters.common.drafting.draft import AscendDraft, PassesOfRunnerV1
from mkv_ascend.adapters.vllm_ascend_0_30.common.drafting.host import Host, send_tokens_to_experts
from mkv_ascend.drafting.draft import HiddenStates, Metadata, PassBatch


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


class SpeculatorDraft(AscendDraft):
    """``Draft`` of a speculator whose model is loaded."""

    _drafted = 0
    """Tokens that this proposal has drafted for each request."""
    _positions: torch.Tensor
    """Of this pass's rows; of later passes on several axes, if the draft has them (M-RoPE)."""
    _sampled_positions: torch.Tensor
    """In the sequence, of the rows that the first pass is sampled from."""

    def forward(self, rows: int, positions: torch.Tensor | None = None) -> HiddenStates:
        send_tokens_to_experts()
        proposer = self._proposer
        if positions is None:
            self._drafted, self._positions = 0, self.buffers.positions
            positions = proposer._get_positions(rows)
        else:
            self._positions = positions
        inputs: dict[str, Any] = {
            "input_ids": self.buffers.token_ids[:rows],
            "positions": positions,
            "inputs_embeds": proposer.inputs_embeds[:rows] if self._embeds else None,
        }
        if self._takes_states:
            inputs["hidden_states"] = proposer.hidden_states[:rows]
        with pipeline.whole():
            answer = proposer.model(**inputs)
        last, hidden = answer if isinstance(answer, tuple) else (answer, answer)
        return HiddenStates(last, hidden)

    def sample(
        self, states: torch.Tensor, rows: torch.Tensor | slice, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``Draft``; by the speculator, where it draws tokens or needs more than the best."""
        speculator = self._proposer
        if not speculator.samples:
            return super().sample(states, rows, out)
        sampled, positions = states[rows], self._positions[..., rows]
        if not self._drafted:
            self._sampled_positions = positions
        elif positions.dim() > 1:
            positions = self._sampled_positions + self._drafted
        tokens: torch.Tensor = speculator.sample_draft(
            sampled,
            positions,
            speculator.idx_mapping[: sampled.shape[0]],
            speculator.temperature,
            speculator.seeds,
            speculator.draft_steps[self._drafted],
            speculator.draft_logits,
        )
        self._drafted += 1
        return tokens if out is None else out.copy_(tokens)


# How model runner V2 of vllm-ascend 0.30.0 does what differs where drafts are run.


class HostOfV2(Host):
    """``DraftHost`` of model runner V2; it differs from V1 in how a draft is run."""

    draft = SpeculatorDraft
    passes = PASSES


HOST = HostOfV2()
