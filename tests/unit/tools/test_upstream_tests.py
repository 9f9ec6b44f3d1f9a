# SPDX-License-Identifier: Apache-2.0
"""How outcomes of vllm-ascend's own tests are sorted. None of its tests is run here."""

import re
from pathlib import Path
from typing import cast

import upstream_reasons
import upstream_tests
from emulated_npu.operators import registry
from upstream_processes import Runner
from upstream_reasons import GAP

UNIT, NIGHTLY = "tests/ut", "tests/e2e/nightly"


WRONG_RESULTS = (
    "AssertionError: assert False\n +  where False = allclose(...)",
    "AssertionError: assert tensor(False)",
    "AssertionError: Tensor-likes are not close!\n\nMismatched elements: 1 / 4096 (0.0%)",
    "AssertionError: Tensor-likes are not equal!",
    "AssertionError: 0.5 not less than or equal to 1e-05 : Absolute error too large",
    "AssertionError: False is not true",
    "AssertionError: Lists differ: [1] != [2]",
    "assert 1 == 2",
)


def test_a_reason_that_accepts_a_wrong_result_names_the_test_that_judges_it() -> None:
    root = Path(upstream_reasons.__file__).parents[1]
    for reason in upstream_reasons.REASONS:
        accepting = [error for error in WRONG_RESULTS if re.search(reason.error, error)]
        assert bool(accepting) == bool(reason.judged_by), (reason, accepting)
        if reason.judged_by:
            file, _, name = reason.judged_by.partition("::")
            assert f"\ndef {name}(" in (root / file).read_text(), reason


def test_what_is_not_run_is_about_operators_that_are_not_there() -> None:
    registry.load_all()
    names = {name for entry in upstream_reasons.NOT_RUN for name in entry.operators}
    names |= set(upstream_reasons.NO_OPERATOR)
    assert not names & {operator.name for operator in registry.OPERATORS.values()}
    runner = cast(Runner, None)  # which nothing is asked
    file = f"{NIGHTLY}/ops/test_dispatch_ffn_combine.py"
    (outcome,) = upstream_tests.outcomes_of(file, runner)
    judged = upstream_tests.judged(outcome)
    assert judged.outcome == GAP
    assert "has no dispatch_ffn_combine" in judged.reason
