# SPDX-License-Identifier: Apache-2.0
"""Faults drawn by number, and what the command refuses before a server starts."""

import pytest

from reliability.__main__ import main
from reliability.fault_cases import DRAFT_WRITES, KINDS, LOST, draw


@pytest.mark.parametrize("kind", KINDS)
def test_each_fault_of_a_kind_comes_in_turn_and_a_number_draws_the_same_again(kind):
    faults = KINDS[kind]
    drawn = [draw(3, number, [kind], ranks=2) for number in range(2 * len(faults))]
    assert [case.fault for case in drawn] == [*faults, *faults]
    assert drawn == [draw(3, number, [kind], ranks=2) for number in range(2 * len(faults))]


def test_writes_of_the_drafts_caches_are_lost_several_times_in_a_row():
    cases = [draw(0, number, ["stale"], ranks=1) for number in range(50)]
    assert {(case.fault, case.operator, case.victim) for case in cases} == {
        (LOST, DRAFT_WRITES, "engine")
    }
    assert all(case.is_of_device and not case.is_deadly and case.times > 1 for case in cases)
    assert len({(case.launch, case.times) for case in cases}) > 40
    assert f"at launch {cases[0].launch} and {cases[0].times - 1} more" in cases[0].describe()


@pytest.mark.parametrize("more", [["--pair", "dense"], ["--pair", "mla", "--no-draft"]])
def test_stale_caches_of_another_pair_are_refused(more, capsys):
    assert main(["faults", "--kinds", "stale", *more]) == 2
    assert "serve it: --pair mla" in capsys.readouterr().err


def test_a_fault_of_the_device_is_of_one_rank():
    """Which one matters: vLLM waits for the answer of the first."""
    drawn = [draw(0, number, ["device"], ranks=2) for number in range(40)]
    assert {case.process for case in drawn} == {"Worker_TP0", "Worker_TP1"}
    assert " worker Worker_TP" in drawn[0].describe()
    stock = [draw(0, number, ["device"], ranks=2, of_stock=True) for number in range(40)]
    unheard = {(case.fault, case.process) for case in stock if case.is_unheard}
    assert unheard == {("error", "Worker_TP1"), ("memory", "Worker_TP1")}
    assert all(case.may_be_deadly and not case.is_deadly for case in stock if case.is_unheard)
    # With the plugin such a rank ends, once it notices.
    assert not any(case.is_unheard for case in drawn)
    by_chance = {(case.fault, case.process) for case in drawn if case.may_be_deadly}
    assert by_chance == {("error", "Worker_TP1")}
    assert {case.fault for case in drawn if case.is_deadly} == {"error", "memory", "kill"}
    assert {draw(0, number, ["device"], ranks=1).process for number in range(40)} == {""}
    at_start = [draw(0, number, ["start"], ranks=2) for number in range(40)]
    assert {case.process for case in at_start} == {""}
