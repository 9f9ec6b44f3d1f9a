# SPDX-License-Identifier: Apache-2.0
"""Commands of published models and mistakes: what check says, and what vLLM itself says of them.

``tests/data/commands.json`` has the words behind ``vllm serve``. ``draft:METHOD:K:NAME`` stands for
``--speculative-config``, ``{NAME}`` and a first word for a published model's folder.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import hosts
from tests.support.command_judge import Judge, folders, judge
from tests.support.drawn_commands import drawn

pytestmark = pytest.mark.slow

__all__ = ["folders", "judge"]
TABLE = json.loads((Path(__file__).resolve().parents[2] / "data" / "commands.json").read_text())
SERVED, UNREADABLE, REFUSED = (TABLE[kind] for kind in ("served", "unreadable", "refused"))
WHILE_MODELS_ARE_BUILT = {
    "an unknown loader",
    "a matrix of fewer rows than none",
    "experts in each zeroth layer",
}
"""What vLLM refuses behind the configuration."""


OTHERWISE_ON_0_30 = {
    "a draft over shares of prompts": "vllm-ascend 0.30.0rc2 has no prefill context parallelism",
    "a layer pattern that transformers does not read": "its transformers reads the pattern",
    "steps that hold no request": "vLLM 0.30.0 lets chunks of a prompt be as short",
    "no room beside drafts": "vLLM 0.30.0 lets chunks of a prompt be as short",
    "an unknown parser of thoughts": "vLLM 0.30.0 asks for the tokenizer first",
}


def skip_where_otherwise(name: str) -> None:
    """Leave out what the second host judges otherwise than the table has it."""
    if hosts.NAME == "vllm_ascend_0_30" and name in OTHERWISE_ON_0_30:
        pytest.skip(OTHERWISE_ON_0_30[name])


@pytest.mark.host("0.23")
@pytest.mark.parametrize("name", SERVED)
def test_what_is_served_is_told_with_its_memory(name: str, judge: Judge) -> None:
    """That vLLM makes a configuration of it, too, is a part of the answer."""
    skip_where_otherwise(name)
    found = judge.ask(SERVED[name])
    assert found["answer"] == "served", found
    assert found["unplanned"] == ""
    assert found["requests"] >= 1
    assert 0 < found["weight_bytes"] < 64 << 30


@pytest.mark.host("0.23")
@pytest.mark.parametrize("name", UNREADABLE)
def test_what_cannot_be_read_is_said_in_vllms_words(name: str, judge: Judge) -> None:
    words, says = UNREADABLE[name]
    found = judge.ask(words)
    assert found["answer"] == "unreadable"
    assert says in found["problem"]


@pytest.mark.host("0.23")
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_served_is_refused(name: str, judge: Judge) -> None:
    skip_where_otherwise(name)
    words, code, says = REFUSED[name]
    found = judge.ask(words)
    assert found["answer"] == "refused", found
    assert not code or code in [refusal["code"] for refusal in found["refusals"]]
    assert says in json.dumps(found["refusals"], ensure_ascii=False)
    assert "Traceback" not in json.dumps(found)


@pytest.mark.host("0.23")
@pytest.mark.parametrize("name", [name for name, row in REFUSED.items() if row[1] != "memory"])
def test_words_of_the_host_are_told_where_it_refuses(name: str, judge: Judge) -> None:
    skip_where_otherwise(name)
    words, code, _ = REFUSED[name]
    theirs = judge.ask(words, raw=True)
    if theirs["answer"] == "served" and name not in WHILE_MODELS_ARE_BUILT:
        found = judge.ask(words)
        assert "host" not in [refusal["code"] for refusal in found["refusals"]]
        assert code != "host"


@pytest.mark.host("0.23")
def test_weights_are_those_of_the_model_cards(judge: Judge) -> None:
    """Parameters that the publishers state, in 16 bits, over the ranks of the command."""
    billions = {"Qwen3-0.6B": (0.596, 1), "Llama-3.1-8B": (8.03, 1), "DeepSeek-V2-Lite": (15.7, 1)}
    billions |= {"Mixtral": (46.7, 4), "Qwen3-Next": (79.7, 4)}
    for name, (number, ranks) in billions.items():
        found = judge.ask(SERVED[name])["weight_bytes"] * ranks / 2e9
        assert found == pytest.approx(number, rel=0.03), name


# Commands drawn at random: what check serves, vLLM and vllm-ascend make a configuration of.
COUNT = 200
LEAST_OF_EACH = 20


@pytest.mark.nightly("200 commands take ten minutes")
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


@pytest.mark.nightly("200 commands take ten minutes")
def test_some_are_served_and_some_refused(judge: Judge) -> None:
    said = [judge.ask(drawn(number))["answer"] for number in range(COUNT)]
    assert min(said.count("served"), said.count("refused")) >= LEAST_OF_EACH
