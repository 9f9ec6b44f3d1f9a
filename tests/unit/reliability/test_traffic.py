# SPDX-License-Identifier: Apache-2.0
"""Requests and faults drawn from a seed: the same again, of every kind, and none impossible."""

from __future__ import annotations

from dataclasses import replace

import pytest

from reliability import fault_cases, traffic

TEXT = tuple(range(3000))
DRAWN = [traffic.draw(7, number, TEXT, 512) for number in range(1000)]


def test_what_is_drawn_fits_into_a_context() -> None:
    for request in DRAWN:
        assert 1 <= len(request.prompt) <= 511
        assert 1 <= request.max_tokens <= 512 - len(request.prompt)


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


def test_hostile_requests_come_beside_the_others_which_stay_as_they_were() -> None:
    drawn = [traffic.draw(7, number, TEXT, 512, hostile=True) for number in range(1000)]
    assert [replace(request, hostile="") for request in drawn] == DRAWN
    assert {request.hostile for request in drawn} == {"", *traffic.HOSTILE}
    assert 50 < sum(bool(request.hostile) for request in drawn) < 200
    one = next(request for request in drawn if request.hostile == "infinite temperature")
    assert one.body("target", False)["temperature"] == float("inf")
