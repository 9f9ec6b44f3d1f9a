# SPDX-License-Identifier: Apache-2.0
"""Some drawn configurations end in a plan or a named refusal; what does not is noticed."""

from __future__ import annotations

import json
import time

import pytest

from mkv_ascend.checks.refusal import Refusal, RefusedError
from reliability import __main__ as program
from reliability import configurations
from reliability.configurations import Answer, answer_to, drawn

COUNT = 400


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    configurations.warm_up()
    return [answer_to(drawn(2, number)) for number in range(COUNT)]


def test_each_has_a_plan_or_a_named_refusal(answers: list[Answer]) -> None:
    assert not {n: one.words for n, one in enumerate(answers) if one.kind == "failed"}


def test_they_are_of_all_kinds(answers: list[Answer]) -> None:
    kinds = [one.kind for one in answers]
    assert kinds.count("planned") > COUNT / 20
    assert kinds.count("refused") > COUNT / 2
    assert {"unplanned", "unreadable"} < set(kinds)
    assert (
        len({code for one in answers if one.kind == "refused" for code in one.words.split()}) > 15
    )


def test_a_number_draws_the_same_again() -> None:
    assert drawn(3, 17) == drawn(3, 17) != drawn(3, 18) != drawn(4, 18)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ZeroDivisionError("division"), "ZeroDivisionError: division (test_configurations.py"),
        (RefusedError([Refusal("code", "asked", "", "change")]), "a part of"),
    ],
    ids=["traceback", "half a refusal"],
)
def test_what_is_neither_is_noticed(
    monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def judge(*_: object) -> None:
        raise error

    monkeypatch.setattr(configurations, "judge", judge)
    monkeypatch.setattr(configurations, "read_command", lambda words, release: {})
    answer = answer_to(drawn(1, 0))
    assert answer.kind == "failed"
    assert said in answer.words


def test_a_late_answer_is_noticed_and_none_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter((0.0, 2.5))
    monkeypatch.setattr(configurations.time, "process_time", lambda: next(clock))
    assert answer_to(drawn(1, 0)).words.startswith(("refused, after", "planned, after"))
    monkeypatch.undo()
    monkeypatch.setattr(configurations, "HANG_SECONDS", 0.1)
    monkeypatch.setattr(configurations, "judge", lambda *_: time.sleep(5))
    monkeypatch.setattr(configurations, "read_command", lambda words, release: {})
    assert "no answer in 0.1 s" in answer_to(drawn(1, 0)).words


def test_the_program_goes_on_where_it_was_stopped(
    monkeypatch: pytest.MonkeyPatch, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[int] = []

    def answer(one: configurations.Drawn) -> Answer:
        asked.append(one.number)
        return Answer("failed" if one.number == 4 else "planned", "words", 0.1)

    monkeypatch.setattr(configurations, "answer_to", answer)
    monkeypatch.setattr(configurations, "warm_up", lambda: None)
    words = ["configurations", "--keep", str(tmp_path / "kept"), "--json"]
    assert program.main([*words, "--count", "3"]) == 0
    assert program.main([*words, "--count", "6"]) == 1
    assert asked == list(range(6))
    found = json.loads(capsys.readouterr().out.rpartition("\n{")[2].join(("{", "")))
    assert found["failures"] == [{"number": 4, "words": "words"}]
    assert found["kinds"] == {"planned": 5, "failed": 1}
    with pytest.raises(SystemExit, match="seed 1, not of 2"):
        program.main([*words, "--count", "6", "--seed", "2"])
