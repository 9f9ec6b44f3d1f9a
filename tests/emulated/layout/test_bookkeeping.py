# SPDX-License-Identifier: Apache-2.0
"""Scheduler, block pool, prefix cache, planned groups and draft plan together, without an engine.

Every slot is judged: who writes to it, and what a row that reads it must find there. More of it:
``python -m reliability bookkeeping``.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from reliability import bookkeeping
from tests.support.bookkeeping.cells import BookkeepingError
from tests.support.bookkeeping.faults import FAULTS, Fault
from tests.support.bookkeeping.machine import Engine, machine
from tests.support.bookkeeping.plans import MAX_LENGTH, PAIRS, config_of, patched

SMALL = settings(
    max_examples=8,
    stateful_step_count=20,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.generate,),
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def test_the_program_runs_all_pairs() -> None:
    """It names them by itself, because its help needs no vLLM."""
    assert tuple(PAIRS) == bookkeeping.NAMES


@pytest.mark.parametrize("name", PAIRS)
def test_every_slot_is_written_and_read_by_its_owner(name: str) -> None:
    made = machine(PAIRS[name])
    run_state_machine_as_test(made, settings=SMALL)
    must = {"verified", "rejected", "chunks", "preempted", "aborted"}
    must |= {"hits"} if PAIRS[name].caching else set()
    assert not {what for what in must if not made.seen[what]}, made.seen


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("name", PAIRS)
def test_the_fewest_blocks_that_are_not_refused_serve_the_longest_request(
    name: str, asynchronous: bool
) -> None:
    """One block less is refused. The request is not preempted: nothing else has a block."""
    with patched(config_of(PAIRS[name], asynchronous, None)):
        engine = Engine(PAIRS[name], asynchronous, 0)
        engine.admit([0, 1, 2, 1] * 10, MAX_LENGTH)
        engine.drain(0)
    assert engine.seen["preempted"] == 0
    assert engine.seen["steps"] < MAX_LENGTH


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_mistakes_are_noticed(fault: Fault) -> None:
    with pytest.raises(BookkeepingError):
        run_state_machine_as_test(machine(PAIRS[fault.pair], fault.plant), settings=SMALL)
