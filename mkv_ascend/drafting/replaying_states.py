# SPDX-License-Identifier: Apache-2.0
"""Mixin: proposals of drafts with recurrent layers are replayed from graphs.

A graph has block tables of its own, in which rows of padding name block 0: rows of the engine's
tables past the batch name blocks of other requests. It fills them from the engine's at its head,
takes from a buffer how many tokens were rejected, and makes what metadata copies from the tables.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from mkv_ascend.drafting.recurrent import RecurrentPasses
from mkv_ascend.drafting.replaying import Replaying
from mkv_ascend.drafting.state_groups import DraftStates
from mkv_ascend.drafting.states import COMMITTED, SCRATCH
from mkv_ascend.drafting.steps import Passes


class ReplayingStates(Replaying):
    """Mixin before ``RecurrentProposing``."""

    states: DraftStates
    make_state_groups: Callable[[], Any]

    def initialize_attn_backend(self, kv_cache_config: Any, *_: Any) -> None:
        """Sort layers into groups; make the buffer for counts of rejected tokens."""
        super().initialize_attn_backend(kv_cache_config)
        self._rejected = torch.zeros(self.max_batch_size, dtype=torch.int32, device=self.device)

    def may_replay(self, common: Any, requests: int) -> bool:
        """Not where a row begins a request: that is a prefill for recurrent layers."""
        lengths = common.seq_lens_cpu_upper_bound[:requests]
        return bool((lengths > self.num_speculative_tokens + 1).all())

    def before_replay(
        self, requests: int, next_token_ids: torch.Tensor, num_rejected: torch.Tensor | None
    ) -> None:
        """How many tokens of each row were rejected."""
        if num_rejected is None:
            self._rejected[:requests].zero_()
        else:
            self._rejected[:requests] = num_rejected[:requests]

    def passes_to_capture(self, requests: int) -> tuple[int, Passes]:
        """As of other drafts, with states of the graph's own."""
        engine = self.states
        self.states = engine.for_graph(self.make_state_groups(), requests)
        try:
            return super().passes_to_capture(requests)
        finally:
            self.states = engine

    def made_again(self, passes: Passes) -> Passes:
        """Take tables and counts, and make metadata of recurrent layers from them."""
        passes = super().made_again(passes)
        assert isinstance(passes, RecurrentPasses)
        states, later = passes.states, passes.later()
        assert states is not None
        requests = states.requests
        lengths = self.draft_plan.later_steps(requests, requests).all_lengths[0]
        states.follow(self.states, lengths.clamp(max=1), self._rejected[:requests])
        first = {**passes.first, **states.again(passes.first, COMMITTED)}
        of_later = states.again(later[0], SCRATCH)
        made = [{**of_pass, **of_later} for of_pass in later]
        return replace(passes, first=first, later=lambda: made)
