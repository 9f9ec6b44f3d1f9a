# SPDX-License-Identifier: Apache-2.0
"""Some drawn configurations end in a plan or a named refusal; what does not is noticed."""

from __future__ import annotations

import time

import pytest

from mkv_ascend.checks.refusal import Refusal, RefusedError
from reliability import configurations
from reliability.configurations import Answer, answer_to, drawn

COUNT = 400


@pytest.fixture(scope="module")
def answers() -> list[Answer]:
    """How long they take is judged where nothing else runs."""
    configurations.warm_up()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(configurations, "SLOW_SECONDS", float("inf"))
        return [answer_to(drawn(2, number)) for number in range(COUNT)]


def test_each_has_a_plan_or_a_named_refusal(answers: list[Answer]) -> None:
    assert not {n: one.words for n, one in enumerate(answers) if one.kind == "failed"}


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
