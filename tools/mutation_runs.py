# SPDX-License-Identifier: Apache-2.0
"""mutmut as ``mutation.py`` starts it: only a sample if asked, and tests that notice soon first.

    python tools/mutation_runs.py [DIGIT ...] -- ARGUMENTS OF MUTMUT

mutmut lets a mutant meet all tests that call what is changed, in no order. Most are caught by many
of them, and one that survives all of them meets all tests of the room once more.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable, Mapping
from typing import Any


def chosen(mutant: str, tests: Iterable[str], seconds: Mapping[str, float]) -> list[str]:
    """The tests that a mutant meets first, those that will probably notice it soon at the front.

    Of each test function the cheapest case and then the costliest: the others mostly notice the
    same. Among equals come the tests of the mutant's own module, then the cheapest. What survives
    these meets all tests of the room before it counts.

    Args:
        seconds: how long each test takes.
    """
    own = f"/test_{mutant.split('.')[-2]}.py::"
    cases: dict[str, list[str]] = {}
    for test in sorted(tests, key=lambda test: (seconds.get(test, 0.0), test)):
        cases.setdefault(test.partition("[")[0], []).append(test)

    def in_order(some: Iterable[str]) -> list[str]:
        return sorted(some, key=lambda test: (own not in test, seconds.get(test, 0.0)))

    cheapest = in_order(each[0] for each in cases.values())
    return cheapest + in_order(each[-1] for each in cases.values() if len(each) > 1)


def choose_tests() -> None:
    """Let mutmut give its fork server these tests of a mutant, in their order."""
    from mutmut.state import state
    from mutmut.workers.isolation import ForkServerRunner

    owner: Any = ForkServerRunner
    submit = owner.submit

    def ordered(runner: Any, mutant: str, tests: Iterable[str], *limits: Any) -> None:
        submit(runner, mutant, chosen(mutant, tests, state().duration_by_test), *limits)

    owner.submit = ordered


def keep_old_objects() -> None:
    """Let forks leave out what their server has loaded when they collect garbage.

    pytest collects it twice at its end, which takes longer than most of the tests.
    """
    from mutmut.runners.harness import PytestRunner

    owner: Any = PytestRunner
    warm_up = owner.warm_up

    def kept(runner: Any) -> None:
        warm_up(runner)
        gc.collect()
        gc.freeze()

    owner.warm_up = kept


def sample(digits: tuple[str, ...]) -> None:
    """Hide all mutants from mutmut but those whose numbers end in one of these digits.

    It judges those again whose names it is given, so the rest is hidden from it instead.
    """
    from mutmut import __main__ as mutmut

    every = mutmut.collect_source_file_mutation_data

    def collected(**names: Any) -> Any:
        mutants, files = every(**names)
        return [one for one in mutants if one[1].endswith(digits)], files

    mutmut.collect_source_file_mutation_data = collected


def main() -> None:
    # mutmut changes into the mutants' folder and imports what lies there, not what lies here.
    sys.path[0] = ""
    border = sys.argv.index("--")
    digits, sys.argv[1:] = tuple(sys.argv[1:border]), sys.argv[border + 1 :]
    from mutmut import __main__ as mutmut

    choose_tests()
    keep_old_objects()
    if digits:
        sample(digits)
    mutmut.cli()


if __name__ == "__main__":
    main()
