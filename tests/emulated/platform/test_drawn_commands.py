# SPDX-License-Identifier: Apache-2.0
"""Commands drawn at random: what check serves, vLLM and vllm-ascend make a configuration of."""

from __future__ import annotations

import json

import pytest

from tests.emulated.platform.test_judged_commands import Answers, folders, questions_and_answers
from tests.support.drawn_commands import drawn

__all__ = ["folders"]

pytestmark = [pytest.mark.slow, pytest.mark.nightly("400 configurations take ten minutes")]
COUNT = 200
LEAST_OF_EACH = 20


@pytest.fixture(scope="module")
def answers(folders: dict[str, str]) -> tuple[Answers, Answers]:
    return questions_and_answers({str(number): drawn(number) for number in range(COUNT)}, folders)


@pytest.mark.parametrize("number", range(COUNT))
def test_check_and_the_host_agree(number: int, answers: tuple[Answers, Answers]) -> None:
    ours, theirs = (of_each[str(number)] for of_each in answers)
    words = drawn(number)
    assert ours["answer"] in ("served", "refused", "unreadable"), words
    assert "Traceback" not in json.dumps(ours), words
    if theirs["answer"] != "served":
        assert ours["answer"] == theirs["answer"], (words, theirs)
    for refusal in ours.get("refusals", ()):
        assert all(refusal[part] for part in ("code", "asked", "possible", "change")), words


def test_some_are_served_and_some_refused_by_each_side(answers: tuple[Answers, Answers]) -> None:
    ours, theirs = answers
    refused_here = [n for n in ours if ours[n]["answer"] != theirs[n]["answer"]]
    assert len(refused_here) >= LEAST_OF_EACH
    for of_each in answers:
        said = [found["answer"] for found in of_each.values()]
        assert min(said.count("served"), said.count("refused")) >= LEAST_OF_EACH
