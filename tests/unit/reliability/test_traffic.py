# SPDX-License-Identifier: Apache-2.0
"""Requests and faults drawn from a seed: the same again, of every kind, and none impossible."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from reliability import fault_cases, traffic

TEXT = tuple(range(3000))
DRAWN = [traffic.draw(7, number, TEXT, 512) for number in range(1000)]


def test_a_number_draws_the_same_request_again() -> None:
    assert [traffic.draw(7, number, TEXT, 512) for number in range(1000)] == DRAWN
    assert traffic.draw(8, 0, TEXT, 512) != DRAWN[0]


def test_what_is_drawn_fits_into_a_context() -> None:
    for request in DRAWN:
        assert 1 <= len(request.prompt) <= 511
        assert 1 <= request.max_tokens <= 512 - len(request.prompt)


def test_there_is_something_of_everything() -> None:
    prompts = Counter(request.prompt for request in DRAWN)
    assert sum(count for count in prompts.values() if count > 1) > 100
    heads = Counter(request.prompt[:128] for request in DRAWN if len(request.prompt) > 128)
    assert sum(count for count in heads.values() if count > 1) > 300
    assert max(len(request.prompt) for request in DRAWN) == 511
    for share in (
        sum(request.stream for request in DRAWN),
        sum(request.choices > 1 for request in DRAWN),
        sum(request.logprobs for request in DRAWN),
        sum(request.letters for request in DRAWN),
        sum(request.priority > 0 for request in DRAWN),
        sum(request.abort_after is not None for request in DRAWN),
        sum(request.likeliest > 1 for request in DRAWN),
        sum(not request.seeded for request in DRAWN),
    ):
        assert 50 < share < 900


def test_no_draw_is_random_among_letters_and_adapters_are_named_where_there_are_some() -> None:
    assert not any(request.letters and request.likeliest > 1 for request in DRAWN)
    assert {request.adapter for request in DRAWN} == {""}
    adapted = [traffic.draw(7, number, TEXT, 512, adapters=["a", "b"]) for number in range(100)]
    names = Counter(request.adapter for request in adapted)
    assert all(names[name] > 20 for name in ("", "a", "b"))
    named = next(request for request in adapted if request.adapter == "b")
    assert named.body("target", False)["model"] == "b"
    assert named.prompt == DRAWN[named.number].prompt


def test_a_request_that_is_drawn_at_random_says_from_what() -> None:
    drawn = next(request for request in DRAWN if request.likeliest > 1 and not request.seeded)
    body = drawn.body("target", False)
    assert (body["top_k"], body["temperature"]) == (drawn.likeliest, drawn.temperature)
    assert "seed" not in body
    assert "seed" in replace(drawn, seeded=True).body("target", False)


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_fault_hits_each_process(ranks: int) -> None:
    kinds = [*fault_cases.KINDS]
    cases = [fault_cases.draw(3, number, kinds, ranks) for number in range(96)]
    assert cases == [fault_cases.draw(3, number, kinds, ranks) for number in range(96)]
    assert len({case.describe() for case in cases}) == 96
    assert {case.fault for case in cases if case.at_start} == {*fault_cases.KINDS["start"]}
    assert all(case.moment <= (1.0 if case.at_start else 3.0) for case in cases)
    hit = {(case.fault, case.victim) for case in cases if not case.at_start}
    processes = {"server", "engine"} | ({"worker"} if ranks == 2 else set())
    assert hit >= {(fault, one) for fault in fault_cases.KINDS["signals"] for one in processes}
    device = "worker" if ranks == 2 else "engine"
    assert hit >= {(fault, device) for fault in fault_cases.KINDS["device"]}
    jumps = [case.seconds for case in cases if case.fault == fault_cases.CLOCK]
    assert min(jumps) < 0 < max(jumps)
    for case in cases:
        assert (case.launch > 0) == case.is_of_device
        # A client that waits for a process that stands still is told something within 30 s.
        assert case.seconds < 20 or case.fault == fault_cases.CLOCK


def test_requests_that_grow_begin_a_second_block_with_their_answer() -> None:
    growing = [traffic.draw_growing(7, number, TEXT) for number in range(8)]
    assert len({request.prompt for request in growing}) == 8
    for request in growing:
        assert len(request.prompt) < traffic.BLOCK < len(request.prompt) + request.max_tokens
        assert request.abort_after is None


def test_answers_may_be_longer() -> None:
    drawn = [traffic.draw(7, number, TEXT, 512, answer=256) for number in range(300)]
    assert max(request.max_tokens for request in drawn) == 256
    assert all(len(request.prompt) + request.max_tokens <= 512 for request in drawn)
    assert traffic.draw(7, 3, TEXT, 512, answer=traffic.LONGEST_ANSWER) == DRAWN[3]


def test_hostile_requests_come_beside_the_others_which_stay_as_they_were() -> None:
    drawn = [traffic.draw(7, number, TEXT, 512, hostile=True) for number in range(1000)]
    assert [replace(request, hostile="") for request in drawn] == DRAWN
    assert {request.hostile for request in drawn} == {"", *traffic.HOSTILE}
    assert 50 < sum(bool(request.hostile) for request in drawn) < 200
    one = next(request for request in drawn if request.hostile == "infinite temperature")
    assert one.body("target", False)["temperature"] == float("inf")
