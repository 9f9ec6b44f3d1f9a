# SPDX-License-Identifier: Apache-2.0
"""How long a step of an engine takes that may hold prompts beside verified drafts: predicted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from mkv_ascend.advice.prediction import Drafting, Serving, host_counts
from mkv_ascend.advice.work import Forward, Part

__all__ = ["StepTime"]


@dataclass(frozen=True)
class StepTime:
    """Seconds of a step of this engine, whose proposals have ``tokens`` tokens."""

    serving: Serving
    drafting: Drafting
    tokens: int

    def seconds(self, decoding: int, context: float, prompts: list[Part]) -> float:
        """Of a step in which so many requests decode, each behind so much ``context``.

        ``prompts``: what is read of prompts besides.
        """
        read = 1 + self.tokens
        device = self._target.seconds([(decoding, read, context), *prompts])
        host = self._host(decoding + len(prompts), self.tokens if decoding else 0)
        return device + host + self._draft(decoding, context, prompts)

    def _host(self, requests: int, tokens: int) -> float:
        """Host time, kept for the next step with as many requests."""
        key = requests, tokens
        if (known := self._known_host_times.get(key)) is None:
            counts = host_counts(self._scheduled, self.drafting, requests, tokens)
            known = self._known_host_times[key] = self.serving.calibration.host(counts)
        return known

    def _draft(self, decoding: int, context: float, prompts: list[Part]) -> float:
        """The draft reads what the target read, and goes on from there."""
        draft = self._draft_model
        if draft is None or not self.tokens:
            return 0.0
        read = self.tokens + self.drafting.first_tokens
        if self.drafting.at_once:
            read = 1 + self.tokens
        first = draft.seconds([(decoding, read, context), *prompts])
        if self.drafting.at_once or not decoding:
            return first
        later = draft.seconds([(decoding, 1, context)])
        return first + (self.tokens - 1) * later

    @cached_property
    def _known_host_times(self) -> dict[tuple[int, int], float]:
        return {}

    @cached_property
    def _scheduled(self) -> Serving:
        """An engine that drafts schedules its steps without a proposal as those with one."""
        ahead = self.drafting.ahead if self.tokens else self.serving.ahead
        return replace(self.serving, ahead=ahead)

    @cached_property
    def _target(self) -> Forward:
        return Forward(self.serving.target, self.serving.device)

    @cached_property
    def _draft_model(self) -> Forward | None:
        model = self.drafting.model
        return None if model is None else Forward(model, self.serving.device)
