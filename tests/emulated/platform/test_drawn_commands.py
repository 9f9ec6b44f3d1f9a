# SPDX-License-Identifier: Apache-2.0
"""Commands drawn at random: what check serves, vLLM and vllm-ascend make a configuration of."""

from __future__ import annotations

import json

import pytest

from tests.support.command_judge import Judge, folders, judge
from tests.support.drawn_commands import drawn

__all__ = ["folders", "judge"]

pytestmark = [pytest.mark.slow, pytest.mark.nightly("200 commands take ten minutes")]
COUNT = 200
LEAST_OF_EACH = 20


@pytest.mark.parametrize("number", range(COUNT))
def test_check_serves_nothing_that_the_host_refuses(number: int, judge: Judge) -> None:
    """What is served was made by ``create_engine_config``; the rest is said without a traceback."""
    words = drawn(number)
    found = judge.ask(words)
    assert found["answer"] in ("served", "refused", "unreadable"), words
    assert "Traceback" not in json.dumps(found), words
    for refusal in found.get("refusals", ()):
        assert all(refusal[part] for part in ("code", "asked", "possible", "change")), words
    if found["answer"] == "refused":
        theirs, codes = judge.ask(words, raw=True), {one["code"] for one in found["refusals"]}
        # Of a host's words alone it is the host that refuses, by a statement of its own.
        assert theirs["answer"] == "refused" or codes != {"host"}, (words, found)


def test_some_are_served_and_some_refused(judge: Judge) -> None:
    said = [judge.ask(drawn(number))["answer"] for number in range(COUNT)]
    assert min(said.count("served"), said.count("refused")) >= LEAST_OF_EACH
