# SPDX-License-Identifier: Apache-2.0
"""Engines drawn at random: a number draws the same one again, and none is impossible."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest

from benchmarks.matrix.running import FAILS, REFUSED, WORKS
from reliability import __main__ as program
from reliability import judging, scenarios
from reliability.parallel_drafts import ParallelDraft
from tests.support import engine, reference
from tests.support.draft_windows import WindowedDraft
from tests.support.reference import DraftProposal

EVERY = (*scenarios.ATTENTION, *scenarios.STATES)


@pytest.fixture(autouse=True)
def no_models(monkeypatch):
    """Names for folders, and numbers for a text's tokens: nothing is trained."""
    monkeypatch.setattr(scenarios, "model_directory", lambda name: f"/models/{name}")
    monkeypatch.setattr(reference, "token_ids", lambda folder, text: list(range(2000)))


def test_what_is_drawn_can_be_served():
    for number in range(200):
        case = scenarios.draw(number, EVERY, {})
        scenario, options = case.scenario, case.scenario.engine
        assert 1 <= scenario.num_speculative_tokens <= case.pair.most_drafts
        rows = 1 + scenario.num_speculative_tokens
        assert options["max_num_batched_tokens"] >= options["max_num_seqs"] * rows
        assert all(1 <= len(one) <= options["max_model_len"] - 2 for one in scenario.prompts)
        assert all(
            size % (scenario.num_speculative_tokens + 1) == 0 for size in scenario.capture_sizes
        )


def result_of(tokens, proposals=(), drafted=2):
    return engine.Result(tokens=tokens, proposals=list(proposals), num_draft_tokens=drafted)


def verdict(monkeypatch, case, result):
    """Of an engine that gave ``result``; the target says 7 after anything, the draft 8."""
    monkeypatch.setattr(judging.engine, "run", lambda scenario: result)
    monkeypatch.setattr(judging, "model_directory", lambda name: f"/models/{name}")
    monkeypatch.setattr(judging.engine, "compared_dtype", lambda: "float32")

    def check(rows, proposals, wanted):
        wrong = [one for one in proposals if any(token != wanted for token in one.tokens)]
        return SimpleNamespace(wrong=wrong, checked=len(proposals))

    monkeypatch.setattr(
        judging.reference, "check_drafts", lambda folder, given, tie: check(None, given, 7)
    )
    monkeypatch.setattr(judging.reference, "judge", lambda rows, given, tie: check(rows, given, 8))
    monkeypatch.setattr(judging, "drafter_of", lambda *_: SimpleNamespace(rows=None))
    return judging.judge(case)


def test_a_wrong_token_a_lost_one_and_a_wrong_draft_are_failures(monkeypatch):
    case = next(
        case
        for case in (scenarios.draw(number, EVERY, {}) for number in range(100))
        if case.judged and case.scenario.max_tokens == 17 and case.scenario.repeats == 1
    )
    longest = case.scenario.engine["max_model_len"]
    right = [[7] * min(17, longest - len(prompt)) for prompt in case.scenario.prompts]
    draft = DraftProposal([1, 2, 3], [8, 8])
    assert verdict(monkeypatch, case, result_of(right, [draft])).result == WORKS
    other = [[*right[0][:-1], 6], *right[1:]]
    assert verdict(monkeypatch, case, result_of(other, [draft])).result == FAILS
    short = [right[0][:-1], *right[1:]]
    assert verdict(monkeypatch, case, result_of(short, [draft])).result == FAILS
    wrong = DraftProposal([1, 2, 3], [8, 9])
    assert verdict(monkeypatch, case, result_of(right, [wrong])).result == FAILS
    assert verdict(monkeypatch, case, result_of(right, drafted=0)).result == FAILS
    # Past the longest context there is no position for the last one.
    last = DraftProposal([1] * (longest - 1), [8, 9])
    assert verdict(monkeypatch, case, result_of(right, [last])).result == WORKS
    # Nor is there one past the longest context of the draft.
    shorter = replace(case.scenario, speculative={**case.scenario.speculative, "max_model_len": 64})
    of_draft = replace(case, scenario=shorter)
    for length, tokens, result in ((63, [8, 9], WORKS), (64, [9], WORKS), (62, [8, 9], FAILS)):
        behind = [draft, DraftProposal([1] * length, tokens)]
        assert verdict(monkeypatch, of_draft, result_of(right, behind)).result == result


def test_a_draft_is_judged_as_it_was_asked_to_draft(monkeypatch):
    monkeypatch.setattr(judging, "model_directory", lambda name: f"/models/{name}")
    monkeypatch.setattr(judging, "drafter_of", lambda *_: "alone")
    case = scenarios.draw(1, EVERY, {})

    def drafter(**fields):
        return judging._drafter(replace(case, scenario=replace(case.scenario, **fields)))

    assert drafter() == "alone"
    assert drafter(mkv_ascend={"drafting": {"window": 128}}) == WindowedDraft("alone", 128)
    assert isinstance(drafter(speculative={"parallel_drafting": True}), ParallelDraft)


def test_a_known_refusal_is_no_failure_and_any_other_end_is(monkeypatch):
    case = scenarios.draw(1, EVERY, {})

    def fail(text):
        def run(scenario):
            raise engine.EngineFailedError(text)

        monkeypatch.setattr(judging.engine, "run", run)
        return judging.judge(case).result

    begun = "Traceback (most recent call last)\n"
    known = "whose layers hand on several states per token where a head takes one"
    assert fail(f"{begun}ValueError: {known}") == REFUSED
    assert fail(f"{begun}ValueError: something else") == FAILS
    assert fail("Killed") == FAILS


def test_the_program_ends_with_1_where_a_case_fails(monkeypatch, capsys):
    monkeypatch.setattr(program, "require_runner", lambda runner: None)
    results = iter([WORKS, FAILS])
    monkeypatch.setattr(judging, "judge", lambda case: judging.Verdict(next(results), "a reason"))
    assert program.main(["engines", "--count", "1", "--pairs", "states"]) == 0
    assert program.main(["engines", "--first", "3", "--count", "1", "--json"]) == 1
    told = capsys.readouterr()
    assert '"reason": "a reason"' in told.out
    assert "1 cases, 1 failed" in told.err
