# SPDX-License-Identifier: Apache-2.0
"""What an engine must do with a cell's requests, by plain loops over Hugging Face models.

The engine says which requests were preempted. What must follow is computed here: a preempted
request starts again with its accepted tokens as its prompt, and the proposal that it held is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.matrix import prompts
from benchmarks.matrix.cells import Cell, K
from benchmarks.matrix.lookup import look_up_and_verify, proposed_by_lookup
from tests.support import engine, reference, speculation
from tests.support.loop_judgement import drafter_of
from tests.support.reference import DraftProposal
from tests.support.speculation import SpeculativeOutput
from tests.support.tiny_models import model_directory


@dataclass
class Expectation:
    """What the reference says: tokens by request, all proposals, and what was accepted of them."""

    tokens: list[list[int]] = field(default_factory=list)
    proposals: list[DraftProposal] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=lambda: [0] * K)
    verified: int = 0
    decided: bool = True

    def add(self, output: SpeculativeOutput) -> None:
        """Count the proposals of ``output``; all of them were verified."""
        self.proposals += output.proposals
        self.verified += sum(1 for proposal in output.proposals if proposal.tokens)
        self.decided &= output.decided
        pairs = zip(self.accepted_per_position, output.accepted_per_position, strict=True)
        self.accepted_per_position = [old + new for old, new in pairs]


@dataclass(frozen=True)
class Assessment:
    """What is not as the reference says (``faults``; empty where all is right), and how many draft
    tokens per proposal it accepts; None where that was not reached or nothing was proposed."""

    faults: list[str]
    reference_acceptance: float | None


class Judge:
    """Says what is right for one cell."""

    def __init__(self, cell: Cell, workload: prompts.Workload = prompts.MIXED) -> None:
        self.cell, self.workload = cell, workload
        self.target = model_directory(cell.reference_model)

    def decode(self, prompt: Sequence[int], count: int) -> SpeculativeOutput:
        """Greedy speculative decoding of ``count`` tokens after ``prompt``."""
        if self.cell.draft_model is None:
            return look_up_and_verify(self.target, prompt, K, count)
        return speculation.draft_and_verify(self.target, self.drafter(), prompt, K, count)

    def drafter(self) -> speculation.Drafter:
        """What says which draft tokens are right."""
        assert self.cell.draft_model is not None
        return drafter_of(self.target, self.cell.draft_model, self.cell.method, K)

    def requests(self) -> list[list[int]]:
        """Eight prompts whose decoding has no near tie."""
        chosen = []
        for position in range(len(self.workload.lengths)):
            for prompt in self.workload.candidates(self.target, position):
                if self.decode(prompt, prompts.NEW_TOKENS).decided:
                    chosen.append(prompt)
                    break
            else:
                raise RuntimeError(f"{self.cell.name}: each candidate {position} has a near tie")
        return chosen

    def assess(self, requests: Sequence[list[int]], result: engine.Result) -> Assessment:
        """Judge what an engine made of ``requests``."""
        expected = self.expectation(requests, result.preempted_contexts)
        return Assessment(
            faults(self, result, expected),
            acceptance(expected.accepted_per_position, expected.verified),
        )

    def expectation(
        self, requests: Sequence[list[int]], preempted: Sequence[list[int]]
    ) -> Expectation:
        """What ``requests`` must give; some were preempted, with the contexts ``preempted``."""
        expected = Expectation()
        for prompt in requests:
            whole = self.decode(prompt, prompts.NEW_TOKENS)
            expected.tokens.append(whole.tokens)
            cuts = sorted(
                (context for context in preempted if context[: len(prompt)] == prompt), key=len
            )
            if not cuts:
                expected.add(whole)
                continue
            start, end = prompt, len(prompt) + prompts.NEW_TOKENS
            for cut in cuts:
                expected.add(self.decode(start, len(cut) - len(start)))
                expected.proposals.append(DraftProposal(cut, self.proposed(cut)))
                start = cut
            expected.add(self.decode(start, end - len(start)))
        return expected

    def proposed(self, context: Sequence[int]) -> list[int]:
        """The draft tokens after ``context``."""
        if self.cell.draft_model is None:
            return proposed_by_lookup(context, K)
        return speculation.draft(self.drafter(), context, K).tokens

    def wrong_draft_tokens(self, proposals: Sequence[DraftProposal]) -> int:
        """How many draft tokens are not what the draft itself says after the accepted context."""
        if self.cell.draft_model is None:
            return sum(one.tokens != proposed_by_lookup(one.context, K) for one in proposals)
        return len(reference.judge(self.drafter().rows, proposals, speculation.TIE).wrong)


def in_order(proposals: Sequence[DraftProposal]) -> list[tuple[list[int], list[int]]]:
    """Proposals in an order that does not depend on which request was served first."""
    return sorted((one.context, one.tokens) for one in proposals if one.tokens)


def faults(judge: Judge, result: engine.Result, expected: Expectation) -> list[str]:
    """What is not as the reference says; empty where all is right."""
    found = []
    differing = sum(
        ours != theirs for ours, theirs in zip(result.tokens, expected.tokens, strict=True)
    )
    if differing:
        found.append(f"{differing} of {len(expected.tokens)} requests got other tokens")
    as_expected = in_order(result.proposals) == in_order(expected.proposals)
    # What the reference proposed itself need not be asked again, which takes long.
    wrong = 0 if as_expected else judge.wrong_draft_tokens(result.proposals)
    if wrong:
        drafted = sum(len(proposal.tokens) for proposal in result.proposals)
        found.append(f"{wrong} of {drafted} draft tokens are not the draft's own")
    if not found and not as_expected:
        found.append("proposals were made after other contexts than the reference's")
    if not found and (result.num_drafts, result.accepted_per_position) != (
        expected.verified,
        expected.accepted_per_position,
    ):
        found.append(
            f"accepted {result.accepted_per_position} of {result.num_drafts} proposals, the "
            f"reference {expected.accepted_per_position} of {expected.verified}"
        )
    return found + judge.workload.not_shown(result)


def acceptance(accepted_per_position: Sequence[int], proposals: int) -> float | None:
    """Accepted draft tokens per proposal; None where there was no proposal."""
    return round(sum(accepted_per_position) / proposals, 4) if proposals else None
