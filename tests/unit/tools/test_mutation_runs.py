# SPDX-License-Identifier: Apache-2.0
"""Which tests a mutant meets first."""

from __future__ import annotations

import itertools

from mutation_runs import chosen

PLAN = "tests/unit/drafting/test_plan.py::test_slots"
NEEDS = "tests/unit/drafting/test_needs.py::test_runs"
SECONDS = {
    f"{PLAN}[1]": 0.3,
    f"{PLAN}[2]": 0.2,
    f"{PLAN}_of_padding": 5.0,
    f"{NEEDS}[1]": 0.1,
    f"{NEEDS}[2]": 0.1,
    f"{NEEDS}[3]": 0.4,
}


def test_of_each_test_function_come_the_cheapest_case_and_then_the_costliest() -> None:
    expected = [
        f"{PLAN}[2]",
        f"{PLAN}_of_padding",
        f"{NEEDS}[1]",
        f"{PLAN}[1]",
        f"{NEEDS}[3]",
    ]
    for tests in itertools.permutations(SECONDS):
        assert chosen("mkv_ascend.drafting.plan.x_slots__mutmut_4", tests, SECONDS) == expected


def test_the_tests_of_another_module_have_no_precedence() -> None:
    """Nor has a test whose name begins with that of the module."""
    own, new = "tests/unit/drafting/test_planner.py::test_a", f"{PLAN}_that_is_new"
    mutant = "mkv_ascend.drafting.planner.xǁPlannerǁpasses__mutmut_2"
    assert chosen(mutant, [own, *SECONDS, new], {**SECONDS, own: 9.0}) == [
        own,
        new,
        f"{NEEDS}[1]",
        f"{PLAN}[2]",
        f"{PLAN}_of_padding",
        f"{PLAN}[1]",
        f"{NEEDS}[3]",
    ]
