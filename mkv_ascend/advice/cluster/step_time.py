# SPDX-License-Identifier: Apache-2.0
"""How long a step of an engine takes that may hold prompts beside verified drafts: predicted."""

from __future__ import annotations

from dataclasses import dataclass

from mkv_ascend.advice.prediction import Drafting, Serving, host_counts
from mkv_ascend.advice.work import ModelWork, Part, batch

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
        verified = Part(decoding, 1 + self.tokens, context)
        device = self._batch(self.serving.target, [verified, *prompts])
        counts = host_counts(
            self.serving, self.drafting, decoding + len(prompts), self.tokens if decoding else 0
        )
        host = self.serving.calibration.host(counts)
        return device + host + self._draft(decoding, context, prompts)

    def _draft(self, decoding: int, context: float, prompts: list[Part]) -> float:
        """The draft reads what the target read, and goes on from there."""
        if self.drafting.model is None or not self.tokens:
            return 0.0
        read = self.tokens + self.drafting.first_tokens
        if self.drafting.at_once:
            read = 1 + self.tokens
        first = self._batch(self.drafting.model, [Part(decoding, read, context), *prompts])
        if self.drafting.at_once or not decoding:
            return first
        later = self._batch(self.drafting.model, [Part(decoding, 1, context)])
        return first + (self.tokens - 1) * later

    def _batch(self, model: ModelWork, parts: list[Part]) -> float:
        return batch(model, self.serving.device, parts).seconds(self.serving.device)
