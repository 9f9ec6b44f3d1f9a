# SPDX-License-Identifier: Apache-2.0
"""The passes of one proposal: run the draft, sample, feed what was sampled back.

What runs here between passes is the draft's own work: its forward, logits, sampling, and feeding
back. Metadata, positions and slots come from outside and are known beforehand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from vllm.forward_context import get_forward_context
from vllm_ascend.ascend_config import get_ascend_config
from vllm_ascend.ascend_forward_context import _EXTRA_CTX
from vllm_ascend.utils import enable_sp, lmhead_tp_enable

from mkv_ascend.drafting.sharing import RotaryRows


@dataclass(frozen=True)
class Passes:
    """Metadata of a proposal's passes, as ``run_passes`` takes it.

    Attributes:
        first: of the first pass.
        positions: of each later step, int32 [rows] (M-RoPE: [3, rows]).
        later: gives the metadata of each later step; asked once the first pass was launched.
        rotary: rotary rows in the metadata of all passes, if there are any.
    """

    first: Any
    positions: tuple[torch.Tensor, ...]
    later: Callable[[], list[Any]]
    rotary: RotaryRows | None = None


class DraftSteps:
    """Mixin over vllm-ascend's proposers: the loop over a proposal's passes."""

    model: Any
    method: str
    num_speculative_tokens: int
    parallel_drafting: bool
    pass_hidden_states_to_model: bool
    supports_mm_inputs: bool
    input_ids: torch.Tensor
    hidden_states: torch.Tensor
    inputs_embeds: torch.Tensor
    runner: Any
    vllm_config: Any
    enable_shared_expert_dp: bool
    _share_mtp_indices: bool

    def _run_merged_draft(
        self,
        num_input_tokens: int,
        batch_size: int,
        token_indices_to_sample: torch.Tensor,
        target_positions: torch.Tensor,
        inputs_embeds: torch.Tensor | None,
        multi_steps_attn_metadata: Any,
        num_tokens: int,
        is_prefill: bool | None = None,
    ) -> torch.Tensor:
        """Draft K tokens for each request; the name and the arguments are vllm-ascend's.

        Args:
            multi_steps_attn_metadata: ``Passes``; a list of metadata dictionaries, as dummy runs
                hand over, empty where they have none.

        Returns:
            int64 [batch_size, K].
        """
        passes = multi_steps_attn_metadata
        if lmhead_tp_enable() or get_ascend_config().enable_reduce_sample:
            # Sampling over a vocabulary that is split otherwise: vllm-ascend's own loop does it,
            # and takes metadata of all steps beforehand.
            if isinstance(passes, Passes):
                passes = [passes.first, *passes.later()]
            drafted: torch.Tensor = super()._run_merged_draft(  # type: ignore[misc]
                num_input_tokens,
                batch_size,
                token_indices_to_sample,
                target_positions,
                inputs_embeds,
                passes,
                num_tokens,
                is_prefill,
            )
            return drafted
        self._skip_topk(False)
        positions = self._get_positions(num_input_tokens)  # type: ignore[attr-defined]
        last, hidden = self._forward(num_input_tokens, positions, inputs_embeds)
        if self.num_speculative_tokens == 1 or self.parallel_drafting:
            sampled = self._sampled(last, token_indices_to_sample)
            return sampled.view(-1, self.num_speculative_tokens)
        tokens = torch.empty(
            (self.num_speculative_tokens, batch_size), dtype=torch.int64, device=last.device
        )
        self._sampled(last, token_indices_to_sample, tokens[0])
        rows = self.later_rows(num_input_tokens, batch_size)
        self._later_passes(tokens, hidden, token_indices_to_sample, rows, passes)
        return tokens.swapaxes(0, 1)

    def _later_passes(
        self,
        tokens: torch.Tensor,
        hidden: torch.Tensor,
        sampled_rows: torch.Tensor,
        rows: int,
        passes: Any,
    ) -> None:
        """The K - 1 passes of one token per request; fill ``tokens`` [K, requests] but row 0.

        Args:
            hidden: the first pass's hidden states, of which ``sampled_rows`` go on.
        """
        self._skip_topk(True)
        later_steps, requests = tokens.shape[0] - 1, tokens.shape[1]
        if isinstance(passes, Passes):
            positions, metadata = passes.positions, passes.later()
        else:
            positions = (self._get_positions(rows),) * later_steps  # type: ignore[attr-defined]
            metadata = list(passes[1:])
        context = get_forward_context()
        _EXTRA_CTX.num_tokens, _EXTRA_CTX.num_accept_tokens = rows, requests
        going_on: torch.Tensor | slice = sampled_rows
        for step in range(later_steps):
            context.moe_layer_index = 0
            context.attn_metadata = metadata[step] if metadata else None
            embeds = self._feed_back(tokens[step], hidden, going_on, rows)
            last, hidden = self._forward(rows, positions[step], embeds)
            going_on = slice(requests)
            self._sampled(last, going_on, tokens[step + 1])

    def _feed_back(
        self, tokens: torch.Tensor, hidden: torch.Tensor, going_on: torch.Tensor | slice, rows: int
    ) -> torch.Tensor | None:
        """What was drafted last becomes the input of the next pass. Returns embeddings, if any.

        Args:
            tokens: int64 [requests].
            hidden: hidden states of the last pass; those of the rows ``going_on`` are read.
        """
        requests = tokens.shape[0]
        self.input_ids[:requests] = tokens
        if self.pass_hidden_states_to_model:
            self.hidden_states[:requests] = hidden[going_on].view(requests, -1)
        if not self.supports_mm_inputs:
            return None
        self.inputs_embeds[:requests] = self.model.embed_input_ids(self.input_ids[:requests])
        return self.inputs_embeds[:rows]

    def _forward(
        self, rows: int, positions: torch.Tensor, inputs_embeds: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """One forward of the draft: hidden states for logits, and those for the next step."""
        inputs: dict[str, Any] = {"input_ids": self.input_ids[:rows]}
        if self.pass_hidden_states_to_model:
            states, positions = self.maybe_pad_and_reduce(  # type: ignore[attr-defined]
                self.hidden_states[:rows], positions
            )
            inputs["hidden_states"] = states
        answer = self.model(positions=positions, inputs_embeds=inputs_embeds, **inputs)
        last, hidden = answer if self.model_returns_tuple() else (answer, answer)  # type: ignore[attr-defined]
        last, _, hidden = self.maybe_all_gather_and_unpad(last, positions, hidden)  # type: ignore[attr-defined]
        return last, hidden

    def _sampled(
        self, states: torch.Tensor, rows: torch.Tensor | slice, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The greedy token of each of these rows of hidden states; int64, into ``out`` if given."""
        logits = self.model.compute_logits(states[rows])
        return torch.argmax(logits, dim=-1, out=out)

    def later_rows(self, first_rows: int, requests: int) -> int:
        """Rows of the later passes: those of the first where ranks must run in step."""
        in_step = (
            self.runner.dp_size > 1 or self.enable_shared_expert_dp or enable_sp(self.vllm_config)
        )
        return first_rows if in_step else requests

    def _skip_topk(self, skip: bool) -> None:
        """Later passes of some MTP heads take over the first one's choice of keys."""
        inner: Any = getattr(self.model, "model", None)
        if self._share_mtp_indices and hasattr(inner, "set_skip_topk"):
            inner.set_skip_topk(skip)
