# SPDX-License-Identifier: Apache-2.0
"""Generated calls: the same from a seed, of the paths that users call, asking for little."""

from types import SimpleNamespace

import pytest

from reliability import calls, fuzz
from reliability.calls import Call

BODY = {
    "type": "object",
    "properties": {
        "prompt": {"type": "string"},
        "max_tokens": {"type": "integer", "minimum": 1},
        "n": {"type": "integer", "minimum": 1, "maximum": 100},
        "temperature": {"type": "number"},
    },
    "required": ["prompt"],
}


def operation(body=BODY):
    return {
        "requestBody": {"content": {"application/json": {"schema": body}}, "required": True},
        "responses": {"200": {"description": "right"}},
    }


SCHEMA = {
    "openapi": "3.1.0",
    "info": {"title": "a server", "version": "1"},
    "paths": {
        "/v1/completions": {"post": operation()},
        "/tokenize": {"post": operation({"type": "object"})},
        "/scale_elastic_ep": {"post": operation()},
        "/collective_rpc": {"post": operation()},
    },
}

ALL_FIELDS = SimpleNamespace(choice=max, random=lambda: 0.0, randint=min)
"""In place of a random number generator."""


@pytest.fixture(scope="module")
def generated():
    return calls.generate(SCHEMA, "a-model", 30, 3)


def test_paths_that_change_the_server_are_not_called(generated):
    assert {call.path for call in generated} == {"/v1/completions", "/tokenize"}


def test_most_calls_name_the_model_and_none_asks_for_much(generated):
    drawn = [call for call in generated if not call.hostile]
    bodies = [call.body for call in drawn if isinstance(call.body, dict)]
    named = [body for body in bodies if body.get("model") == "a-model"]
    assert len(bodies) / 2 < len(named) < len(bodies)
    for body in bodies:
        for name, most in (("max_tokens", calls.MOST_TOKENS), ("n", calls.MOST_CHOICES)):
            value = body.get(name)
            assert not isinstance(value, int | float) or value <= most


def test_what_the_server_has_to_judge_stays_as_it_is():
    body = {"max_tokens": -4, "n": True, "min_tokens": "9", "sampling_params": {"max_tokens": 900}}
    shaped = calls.shaped(body, "a-model", ALL_FIELDS)
    assert (shaped["max_tokens"], shaped["n"], shaped["min_tokens"]) == (-4, True, "9")
    assert shaped["sampling_params"] == {"max_tokens": calls.MOST_TOKENS}
    assert calls.shaped([1, "a"], "a-model", ALL_FIELDS) == [1, "a"]
    assert calls.shaped({"n": 68.0}, "a-model", ALL_FIELDS)["n"] == calls.MOST_CHOICES
    assert body["sampling_params"] == {"max_tokens": 900}


def test_only_errors_that_stock_does_not_give_are_problems():
    sent = [Call(number, "POST", "/v1/completions", {"n": number}) for number in range(3)]
    found = fuzz.Findings("the plugin", errors={0: "500", 2: fuzz.HUNG})
    assert fuzz.new_errors(found, {0: "500"}, sent) == [
        "hung: call 2 POST /v1/completions {'n': 2}"
    ]
    assert fuzz.new_errors(found, {0: "500", 2: fuzz.DROPPED}, sent) == []
