# SPDX-License-Identifier: Apache-2.0
"""What an engine did, judged by Hugging Face: each of the target's tokens, each draft token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.matrix import refusals
from benchmarks.matrix.running import FAILS, REFUSED, WORKS
from reliability.parallel_drafts import ParallelDraft
from reliability.scenarios import Case
from tests.support import engine, reference
from tests.support.draft_windows import WindowedDraft
from tests.support.loop_judgement import drafter_of
from tests.support.pairs import TIES
from tests.support.reference import DraftProposal
from tests.support.speculation import Drafter
from tests.support.tiny_models import model_directory

MOST_JUDGED = 60
"""Proposals of a case that are judged: each is a pass of the draft without a cache."""


@dataclass(frozen=True)
class Verdict:
    """How a case ended.

    Attributes:
        result: one of ``WORKS``, ``REFUSED``, ``FAILS``.
        reason: what is wrong, or the refusal.
        tokens: tokens that the target gave.
        drafted: draft tokens that were judged.
        accepted: share of all draft tokens that were accepted.
        replays: proposals that were replayed from a graph.
    """

    result: str
    reason: str = ""
    tokens: int = 0
    drafted: int = 0
    accepted: float = 0.0
    replays: int = 0


def judge(case: Case) -> Verdict:
    """Run the case in an engine of its own, and judge it."""
    try:
        result = engine.run(case.scenario)
    except engine.EngineFailedError as error:
        if (known := refusals.known_refusal(str(error))) is not None:
            return Verdict(REFUSED, known.reason)
        return Verdict(FAILS, refusals.last_words(str(error)))
    checks = (_lengths, _no_drafts, _wrong_tokens, _wrong_drafts)
    problems = [problem for check in checks for problem in check(case, result)]
    accepted = result.num_accepted / result.num_draft_tokens if result.num_draft_tokens else 0.0
    return Verdict(
        FAILS if problems else WORKS,
        "; ".join(problems),
        sum(map(len, result.tokens)),
        sum(len(proposal.tokens) for proposal in _judged(case, result)),
        accepted,
        result.draft_replays,
    )


def _lengths(case: Case, result: engine.Result) -> Iterator[str]:
    prompts, longest = case.scenario.prompts * case.scenario.repeats, _longest(case)
    for index, (prompt, tokens) in enumerate(zip(prompts, result.tokens, strict=True)):
        wanted = min(case.scenario.max_tokens, longest - len(prompt))
        if len(tokens) != wanted:
            yield f"request {index} has {len(tokens)} tokens, not {wanted}"


def _no_drafts(case: Case, result: engine.Result) -> Iterator[str]:
    """A request of four tokens has room for a draft behind its first: none is no speculation."""
    if max(map(len, result.tokens)) >= 4 and not result.num_draft_tokens:
        yield "no draft token was verified"


def _wrong_tokens(case: Case, result: engine.Result) -> Iterator[str]:
    if case.pair.rounded:
        return
    prompts = case.scenario.prompts * case.scenario.repeats
    given = [DraftProposal(*pair) for pair in zip(prompts, result.tokens, strict=True)]
    near_tie, _ = TIES[engine.compared_dtype()]
    report = reference.check_drafts(model_directory(case.pair.reference), given, near_tie)
    if report.wrong:
        yield f"{len(report.wrong)} tokens of the target, the first {report.wrong[0]}"


def _wrong_drafts(case: Case, result: engine.Result) -> Iterator[str]:
    if not case.judged:
        return
    drafter = _drafter(case)
    near_tie, _ = TIES[engine.compared_dtype()]
    report = reference.judge(drafter.rows, _judged(case, result), near_tie)
    if report.wrong:
        yield f"{len(report.wrong)} of {report.checked} draft tokens, the first {report.wrong[0]}"


def _drafter(case: Case) -> Drafter:
    """What judges the draft as it was asked to draft."""
    if case.scenario.speculative.get("parallel_drafting"):
        return ParallelDraft(Path(model_directory(case.pair.draft)))
    pair, k = case.pair, case.scenario.num_speculative_tokens
    alone = drafter_of(Path(model_directory(pair.reference)), pair.draft, pair.method, k)
    window = case.scenario.mkv_ascend.get("drafting", {}).get("window")
    return alone if window is None else WindowedDraft(alone, window)


def _judged(case: Case, result: engine.Result) -> list[DraftProposal]:
    """Proposals from all parts of a run, without tokens past the longest context.

    No position is left for those, and none is ever accepted; a draft may have fewer. A head knows
    nothing of a context of one token.
    """
    longest = min(_longest(case), case.scenario.speculative.get("max_model_len", _longest(case)))
    cut = [
        DraftProposal(one.context, one.tokens[: longest - len(one.context)])
        for one in result.proposals
        if 1 < len(one.context) < longest
    ]
    return cut[:: max(1, -(-len(cut) // MOST_JUDGED))]


def _longest(case: Case) -> int:
    return case.longest or int(case.scenario.engine["max_model_len"])
