# SPDX-License-Identifier: Apache-2.0
"""The ops benchmark, and the goals that are counts."""

from typing import Any

import pytest

from benchmarks import op_batches
from benchmarks.op_loops import Loops
from benchmarks.ops import as_table, run
from mkv_ascend import ops

pytestmark = pytest.mark.packaging

# The most that is moved, over the least possible. Where nothing is said: at any size.
BYTES = {"draft_plan": 1.3, "expand_inputs": 1.5, "target_slots": 1.5, "zero_blocks": 1.01}
BYTES_OF_ONE_REQUEST = {"draft_plan": 2, "expand_inputs": 2}
BALANCE = 1.2
# Instructions of the scalar unit per request; half of what they were with a look at each token.
SCALARS = {
    "expand_inputs B=256 T=1280 G=4": 18.9,
    "target_slots B=256 T=256 G=4": 10.2,
    "target_slots B=256 T=1280 G=4": 26.4,
}


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return run()


def rows(result: dict[str, Any]) -> list[dict[str, Any]]:
    assert len(result["rows"]) == len(op_batches.CASES)
    return list(result["rows"])


def test_little_more_is_moved_than_must_be(result: dict[str, Any]) -> None:
    for row in rows(result):
        most = BYTES[row["op"]]
        if row["size"].startswith("B=1 "):
            most = BYTES_OF_ONE_REQUEST.get(row["op"], most)
        # Less than the least would be a wrong least.
        assert 1 <= row["bytes_ratio"] <= most, as_table(result)


def test_forty_cores_share_what_256_requests_need(result: dict[str, Any]) -> None:
    large = [row for row in rows(result) if row["size"].startswith(("B=256 ", "N=8 "))]
    assert len(large) == 5
    assert all(row["balance"] <= BALANCE for row in large), as_table(result)


def test_the_scalar_unit_looks_at_requests_not_at_tokens(result: dict[str, Any]) -> None:
    found = {f"{row['op']} {row['size']}": row["scalar_per_request"] for row in rows(result)}
    assert all(found[name] <= most for name, most in SCALARS.items()), as_table(result)


def test_the_plain_loops_agree_with_the_kernels_for_cpu_tensors() -> None:
    """At every size that is measured; a ratio below 0 would be an error."""
    ops.load_all()
    loops = Loops()
    assert all(loops.ratio(case.op, case.loop) > 0 for case in op_batches.CASES)
