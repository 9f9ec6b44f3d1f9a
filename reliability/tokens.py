# SPDX-License-Identifier: Apache-2.0
"""Tokens that servers gave, judged by Hugging Face in float32."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reliability.client import ANSWERED, Answer
from reliability.draws import Draws
from reliability.traffic import LETTERS, Request
from tests.support import engine, reference
from tests.support.pairs import TIES

if TYPE_CHECKING:
    import torch


class Judge:
    """Judges answers of one target.

    Attributes:
        checked: tokens that were judged.
        near_ties: those among them that are not the first choice, but as good as it.
        draws: those that were drawn at random.
    """

    def __init__(self, folder: Path, adapted: Mapping[str, Path] | None = None) -> None:
        """``adapted``: adapter -> the folder of the target with it."""
        self.checked = 0
        self.near_ties = 0
        self.draws = Draws()
        self._folders = {"": folder, **(adapted or {})}
        self._tie, _ = TIES[engine.compared_dtype()]
        self._known: dict[Any, tuple[list[int], torch.Tensor]] = {}

    def problems(self, answer: Answer) -> list[str]:
        """What is wrong with an answer, whatever its outcome; of a hostile request nothing is."""
        found: list[str] = []
        if answer.request.hostile:
            return found
        for index, tokens in enumerate(answer.tokens):
            said = [
                *self._wrong_length(answer, tokens),
                *self._wrong_tokens(answer, tokens),
                *self._wrong_logprobs(answer, tokens, answer.logprobs[index]),
            ]
            found += [f"request {answer.request.number}, choice {index}: {one}" for one in said]
        return found

    def _wrong_length(self, answer: Answer, tokens: list[int]) -> Iterator[str]:
        wanted = answer.request.max_tokens
        if len(tokens) > wanted or (answer.outcome == ANSWERED and len(tokens) != wanted):
            yield f"{len(tokens)} tokens, not {wanted}"

    def _wrong_tokens(self, answer: Answer, tokens: list[int]) -> Iterator[str]:
        rows = self._rows(answer, tokens)
        if answer.request.likeliest > 1:
            yield from self._wrong_draws(answer.request, tokens, rows)
            return
        for position, token in enumerate(tokens):
            row = rows[position]
            self.checked += 1
            best = row.max()
            if float(best - row[token]) == 0.0:
                continue
            if float(best - row[token]) < self._tie:
                self.near_ties += 1
                continue
            yield f"token {position} is {token}, Hugging Face says {int(row.argmax())}"
            return

    def _wrong_draws(
        self, request: Request, tokens: list[int], rows: torch.Tensor
    ) -> Iterator[str]:
        for position, token in enumerate(tokens):
            row = rows[position]
            self.checked += 1
            best, names = row.topk(request.likeliest)
            if token not in names:
                if float(best[-1] - row[token]) < self._tie:
                    self.near_ties += 1
                    continue
                yield f"token {position} is {token}, none of {request.likeliest} likeliest"
                return
            drawn = names.tolist().index(token)
            self.draws.add((best.double() / request.temperature).log_softmax(-1), drawn)

    def _wrong_logprobs(
        self, answer: Answer, tokens: list[int], logprobs: list[float]
    ) -> Iterator[str]:
        if not answer.request.logprobs or not tokens:
            return
        if len(logprobs) != len(tokens):
            yield f"{len(logprobs)} logprobs of {len(tokens)} tokens"
            return
        # vLLM gives those of the tokens that a grammar allows, among themselves.
        rows = self._rows(answer, tokens).log_softmax(-1)
        for position, (token, logprob) in enumerate(zip(tokens, logprobs, strict=True)):
            if abs(float(rows[position][token]) - logprob) >= self._tie:
                yield f"logprob {position} is {logprob}, not {float(rows[position][token])}"
                return

    def _rows(self, answer: Answer, tokens: list[int]) -> torch.Tensor:
        """Logits where each token was chosen, computed once for answers that begin alike."""
        import torch

        request = answer.request
        key = (request.adapter, request.prompt, request.letters)
        if key not in self._known or self._known[key][0][: len(tokens)] != tokens:
            whole = [*request.prompt, *tokens]
            rows = reference.logits_of(self._folders[request.adapter], whole)
            self._known[key] = (list(tokens), rows[len(request.prompt) - 1 :])
        rows = self._known[key][1]
        if request.letters:
            allowed = torch.full_like(rows, -torch.inf)
            allowed[:, list(LETTERS)] = 0.0
            rows = rows + allowed
        return rows
