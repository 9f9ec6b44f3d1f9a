# SPDX-License-Identifier: Apache-2.0
"""The judge of targets that compute in 16 bits, where near ties decide what comes out."""

from collections.abc import Sequence

import pytest
import torch

from benchmarks.matrix import rounded, rounded_models
from benchmarks.matrix.cells import K, find_cells
from benchmarks.matrix.rounded import NEAR_TIE, RoundedJudge
from tests.support.engine import Result
from tests.support.reference import DraftProposal, DraftReport, judge

COUNT = 12
PROMPTS = [[1, 2, 3, 4], [5, 1], [2, 2, 6, 1, 0]]


def target_row(context: Sequence[int]) -> torch.Tensor:
    """Any function of the whole context; after every fifth length two tokens are nearly as good."""
    row = torch.zeros(7)
    best = (3 * sum(context) + len(context)) % 7
    row[best] = 1.0
    if len(context) % 5 == 0:
        row[(best + 1) % 7] = 1.0 - NEAR_TIE / 2
    return row


def draft_row(context: Sequence[int]) -> torch.Tensor:
    """As the target, except where the context's length is a multiple of 3."""
    row = torch.zeros(7)
    row[(int(target_row(context).argmax()) + (len(context) % 3 == 0)) % 7] = 1.0
    return row


class ToyJudge(RoundedJudge):
    def __init__(self) -> None:
        (self.cell,) = find_cells(["deepseek-v4/dense"])
        self.workload = rounded_models.MIXED

    def target_rows(self, context: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        known = [*context, *tokens]
        return torch.stack([target_row(known[:end]) for end in range(len(context), len(known) + 1)])

    def draft_report(self, proposals: Sequence[DraftProposal]) -> DraftReport:
        def rows(context: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
            return torch.stack([draft_row([*context, *tokens[:n]]) for n in range(len(tokens) + 1)])

        return judge(rows, proposals, NEAR_TIE)


def engine_result(preempt: tuple[int, int], others: int) -> Result:
    """An engine's loop that takes the second best at the first ``others`` near ties.

    Request ``preempt[0]`` is preempted before verification ``preempt[1]``: its proposal is lost.
    """
    result = Result(tokens=[], accepted_per_position=[0] * K)
    counted = 0

    def choice(context: Sequence[int]) -> int:
        nonlocal others
        order = target_row(context).topk(2).indices.tolist()
        second = len(context) % 5 == 0 and others > 0
        others -= second
        return int(order[second])

    for number, prompt in enumerate(PROMPTS):
        tokens, verifications = [*prompt, choice(prompt)], 0
        while len(tokens) < len(prompt) + COUNT:
            drafted: list[int] = []
            for _ in range(K):
                drafted.append(int(draft_row([*tokens, *drafted]).argmax()))
            result.proposals.append(DraftProposal(list(tokens), drafted))
            if (number, verifications) == preempt and not result.preempted_contexts:
                result.preempted_contexts.append(list(tokens))
                tokens.append(choice(tokens))
                continue
            verifications, counted = verifications + 1, counted + 1
            for position, token in enumerate(drafted):
                tokens.append(choice(tokens))
                if token != tokens[-1]:
                    break
                result.accepted_per_position[position] += 1
            else:
                tokens.append(choice(tokens))
        result.tokens.append(tokens[len(prompt) : len(prompt) + COUNT])
    return Result(**{**vars(result), "num_drafts": counted})


@pytest.fixture(autouse=True)
def short_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.matrix.prompts.NEW_TOKENS", COUNT)


@pytest.mark.parametrize("verification", [0, 1, 2])
@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("others", [0, 1])
def test_a_right_engine_has_no_fault(number: int, verification: int, others: int) -> None:
    result = engine_result((number, verification), others)
    assert result.preempted_contexts
    assessment = ToyJudge().assess(PROMPTS, result)
    assert assessment.faults == []
    accepted = sum(result.accepted_per_position) / result.num_drafts
    assert assessment.reference_acceptance == pytest.approx(accepted, abs=1e-4)


def changed(**fields: object) -> list[str]:
    right = engine_result((1, 1), 0)
    return ToyJudge().assess(PROMPTS, Result(**{**vars(right), **fields})).faults


def test_each_fault_is_named() -> None:
    right = engine_result((1, 1), 0)
    assert changed(tokens=[[0] * COUNT, *right.tokens[1:]])[0] == "1 of 3 requests got other tokens"
    assert changed(tokens=[right.tokens[0][:-1], *right.tokens[1:]])[0].startswith("1 of 3 ")
    first = right.proposals[0]
    wrong = DraftProposal(first.context, [first.tokens[0], (first.tokens[1] + 1) % 7, 0])
    assert "are not the draft's own" in changed(proposals=[wrong, *right.proposals[1:]])[0]
    assert changed(proposals=right.proposals[1:])[0].startswith("proposals were made after")
    stray = DraftProposal([1, 2, 3], [int(draft_row([1, 2, 3]).argmax())])
    assert changed(proposals=[*right.proposals, stray])[0].startswith("proposals were made after")
    more = [right.accepted_per_position[0] + 1, *right.accepted_per_position[1:]]
    assert changed(accepted_per_position=more)[0].startswith("accepted ")
    assert changed(num_drafts=right.num_drafts + 1)[0].startswith("accepted ")
    assert changed(preempted_contexts=[])[-1].startswith("no request was preempted")


def test_ties_are_let_pass_up_to_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    result = engine_result((1, 1), 3)
    assert ToyJudge().assess(PROMPTS, result).faults == ["3 of 36 tokens are other near ties"]
    monkeypatch.setattr(rounded, "SHARE", 0.1)
    assert ToyJudge().assess(PROMPTS, result).faults == []
