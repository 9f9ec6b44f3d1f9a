# SPDX-License-Identifier: Apache-2.0
"""The ops benchmark at its smallest sizes, and the goals that are counts."""

from benchmarks import op_batches
from benchmarks.ops import as_table, run


def test_rows_and_goals():
    """Times are not looked at: another process may run beside this one."""
    cases = (op_batches.draft_plan(256), op_batches.zero_blocks(8, 4, 4096),
             op_batches.expand_inputs(256, 5, 2), op_batches.target_slots(256, 1))  # fmt: skip
    result = run(cases)
    rows = {row["op"]: row for row in result["rows"]}
    assert set(rows["draft_plan"]) == {
        "op", "size", "bytes_ratio", "vector_per_request", "scalar_per_request", "balance",
        "cpu_over_loop", "cpu_over_reference",
    }  # fmt: skip
    assert rows["draft_plan"]["bytes_ratio"] <= 2
    assert rows["zero_blocks"]["bytes_ratio"] <= 1.25
    assert all(row["balance"] <= 1.2 for row in rows.values()), as_table(result)
    assert as_table(result).splitlines()[1].startswith("draft_plan  ")


def test_goals_of_expand_inputs():
    """Outputs in whole copies, ids once per request; half the scalar instructions, 37.8, that a
    copy for each run of a request took."""
    sizes = {"one": (1, 5, 2), "some": (64, 5, 2), "many": (256, 5, 2), "long": (1, 8192, 0)}
    cases = tuple(op_batches.expand_inputs(*size) for size in sizes.values())
    rows = dict(zip(sizes, run(cases)["rows"], strict=True))
    assert rows["one"]["bytes_ratio"] <= 2
    assert all(rows[name]["bytes_ratio"] <= 1.5 for name in ("some", "many", "long")), rows
    assert all(rows[name]["balance"] <= 1.2 for name in ("many", "long")), rows
    assert rows["many"]["scalar_per_request"] <= 37.8 / 2
