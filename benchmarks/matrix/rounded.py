# SPDX-License-Identifier: Apache-2.0
"""What an engine must do with a target that computes in 16 bits, as DeepSeek-V4 does.

There the order of summation decides which of two nearly equal logits is larger, so the tokens
cannot be known beforehand. The engine's own tokens are judged instead: every token of the target
and of the draft, by the reference's logits after the tokens before it. Near ties pass and are
counted.
From the judged tokens and draft tokens it is then counted again after which contexts proposals were
due and how many of their tokens were to be accepted.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from benchmarks.matrix import prompts
from benchmarks.matrix.cells import K
from benchmarks.matrix.judging import Assessment, Judge, acceptance
from benchmarks.matrix.rounded_models import MODELS
from tests.support import engine, reference, speculation
from tests.support.reference import DraftProposal, DraftReport

if TYPE_CHECKING:
    import torch

NEAR_TIE = 0.05
"""Difference of two logits that decides nothing in bfloat16; the models' spread by about 1 to 4."""

SHARE = 0.02
"""Share of tokens that may be such ties."""


@dataclass
class Count:
    """Proposals that were due, and the accepted tokens of them at each position.

    Attributes:
        verified: proposals that were verified, empty ones not counted.
        least, most: accepted tokens per position; they differ by near ties behind the last token.
        strays: proposals that were not due, and such as were due and not made.
    """

    verified: int = 0
    least: list[int] = field(default_factory=lambda: [0] * K)
    most: list[int] = field(default_factory=lambda: [0] * K)
    strays: int = 0

    def add(self, least: int, most: int) -> None:
        """Count one proposal; ``least`` to ``most`` of its tokens were to be accepted."""
        self.verified += 1
        for position in range(K):
            self.least[position] += position < least
            self.most[position] += position < most


class RoundedJudge(Judge):
    """Says what is right for a cell whose target no float32 reference can decide."""

    def requests(self) -> list[list[int]]:
        """Eight prompts, each of those with the fewest near ties on the reference's own way."""
        chosen = []
        for position in range(len(self.workload.lengths)):
            fewest: tuple[int, list[int]] | None = None
            for prompt in self.workload.candidates(self.target, position):
                question = {"near ties": prompt, "below": NEAR_TIE, "tokens": prompts.NEW_TOKENS}
                count = functools.partial(self.near_ties, prompt)
                ties = reference.cached_answer([self.target], question, count)
                if fewest is None or ties < fewest[0]:
                    fewest = ties, prompt
                if not ties:
                    break
            assert fewest is not None
            chosen.append(fewest[1])
        return chosen

    def near_ties(self, prompt: Sequence[int]) -> int:
        """How many of the reference's tokens after ``prompt`` are near ties."""
        known, ties = list(prompt), 0
        for _ in range(prompts.NEW_TOKENS):
            token, gap = reference.choice(self.target_rows(known, [])[-1])
            known.append(token)
            ties += gap < NEAR_TIE
        return ties

    def target_rows(self, context: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """The target's logits after ``context`` and after each of ``tokens``."""
        return MODELS[self.cell.target].rows(self.target, context, tokens)

    def assess(self, requests: Sequence[list[int]], result: engine.Result) -> Assessment:
        """Judge what an engine made of ``requests``."""
        found = [*self._wrong_tokens(requests, result), *self._wrong_drafts(result)]
        if found:
            return Assessment([*found, *self.workload.not_shown(result)], None)
        count = self.count(requests, result)
        if count.strays:
            found.append("proposals were made after other contexts than they were due at")
        bounds = zip(count.least, result.accepted_per_position, count.most, strict=True)
        if result.num_drafts != count.verified or not all(
            least <= accepted <= most for least, accepted, most in bounds
        ):
            found.append(
                f"accepted {result.accepted_per_position} of {result.num_drafts} proposals, the "
                f"reference {count.least} to {count.most} of {count.verified}"
            )
        counted = count.least if found else result.accepted_per_position
        found += self.workload.not_shown(result)
        return Assessment(found, acceptance(counted, count.verified))

    def _wrong_tokens(self, requests: Sequence[list[int]], result: engine.Result) -> Iterable[str]:
        pairs = zip(requests, result.tokens, strict=True)
        said = [DraftProposal(prompt, tokens) for prompt, tokens in pairs]
        report = reference.judge(self.target_rows, said, NEAR_TIE)
        wrong = {deviation.proposal for deviation in report.wrong}
        short = sum(len(one.tokens) != prompts.NEW_TOKENS for one in said)
        if wrong or short:
            yield f"{len(wrong) + short} of {len(said)} requests got other tokens"
        yield from _too_many_ties(report, "tokens")

    def _wrong_drafts(self, result: engine.Result) -> Iterable[str]:
        drafted = sum(len(proposal.tokens) for proposal in result.proposals)
        if self.cell.draft_model is None:
            wrong = self.wrong_draft_tokens(result.proposals)
        else:
            report = self.draft_report(result.proposals)
            wrong = len(report.wrong)
            yield from _too_many_ties(report, "draft tokens")
        if wrong:
            yield f"{wrong} of {drafted} draft tokens are not the draft's own"

    def draft_report(self, proposals: Sequence[DraftProposal]) -> DraftReport:
        """Each draft token by the draft's own logits."""
        return reference.judge(self.drafter().rows, proposals, NEAR_TIE)

    def drafter(self) -> speculation.Drafter:
        """What says which draft tokens are right."""
        return MODELS[self.cell.target].drafter(self.target, self.cell)

    def count(self, requests: Sequence[list[int]], result: engine.Result) -> Count:
        """Go through the proposals that were due, from the tokens that came out."""
        made = {tuple(one.context): one.tokens for one in result.proposals if one.tokens}
        lost = {tuple(context) for context in result.preempted_contexts}
        count = Count()
        for prompt, tokens in zip(requests, result.tokens, strict=True):
            at = 1
            while at < len(tokens):
                context = (*prompt, *tokens[:at])
                proposed = made.pop(context, [])
                # Only a method that looks tokens up may have none to propose.
                count.strays += not proposed and self.cell.draft_model is not None
                if context in lost:
                    at += 1
                    continue
                least, most = self._accepted(context, proposed, tokens[at:])
                if proposed:
                    count.add(least, most)
                at += least + 1
        count.strays += len(made)
        return count

    def _accepted(
        self, context: Sequence[int], proposed: Sequence[int], following: Sequence[int]
    ) -> tuple[int, int]:
        """How many tokens of a proposal are accepted, at least and at most.

        Behind the last token that was asked for, the reference's logits say what would follow.
        """
        pairs = list(zip(proposed, following, strict=False))
        for position, (token, right) in enumerate(pairs):
            if token != right:
                return position, position
        if len(pairs) == len(proposed):
            return len(proposed), len(proposed)
        rows = self.target_rows(context, proposed)
        least = most = len(pairs)
        for token, row in zip(proposed[len(pairs) :], rows[len(pairs) :], strict=False):
            others = row.clone()
            others[token] = float("-inf")
            lead = float(row[token] - others.max())
            if lead < -NEAR_TIE:
                break
            least += least == most and lead >= NEAR_TIE
            most += 1
        return least, most


def _too_many_ties(report: DraftReport, what: str) -> Iterable[str]:
    if len(report.near_ties) > max(1, SHARE * report.checked):
        yield f"{len(report.near_ties)} of {report.checked} {what} are other near ties"
