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
