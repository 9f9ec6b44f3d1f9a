# SPDX-License-Identifier: Apache-2.0
"""The AscendC kernel of draft_plan on the CPU: every value as a loop over integers gives it, and
nothing reported by the checker."""

import ctypes
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.support.ascendc_host import Output, Report
from tests.unit.ascend_kernels.kernels import CORES, aligned, examples, library

pytestmark = pytest.mark.packaging

GARBAGE = -77
Integers = np.ndarray


@dataclass
class Plan:
    """Inputs of one call; tables hold ids that are never the same twice."""

    positions: Integers
    num_requests: int
    block_sizes: list[int]
    columns: list[int]
    steps: int
    max_model_len: int
    table_rows: int
    padding: int = 0  # columns of the outputs behind the rows
    tables: list[Integers] = field(default_factory=list)

    def __post_init__(self) -> None:
        for group, columns in enumerate(self.columns):
            ids = np.arange(self.table_rows * (columns + group), dtype=np.int32)
            ids = (ids * 7919 + group) % 100003
            self.tables.append(aligned(ids.reshape(self.table_rows, columns + group))[:, :columns])

    @property
    def rows(self) -> int:
        return len(self.positions)


@dataclass
class Outputs:
    step_positions: Integers
    lengths: Integers
    slots: Integers


def expected(plan: Plan) -> Outputs:
    """Plain loops over Python's integers."""
    outputs = empty(plan)
    for step in range(plan.steps):
        for row in range(plan.rows):
            live = row < plan.num_requests
            moved = int(plan.positions[row]) + step + 1
            fits = live and 0 <= moved < plan.max_model_len
            outputs.step_positions[step, row] = moved if fits else 0
            outputs.lengths[step, row] = (moved + 1 if fits else 1) if live else 0
            for group, table in enumerate(plan.tables):
                column, inside = divmod(moved, plan.block_sizes[group])
                held = fits and row < plan.table_rows and column < plan.columns[group]
                slot = int(table[row, column]) * plan.block_sizes[group] + inside if held else -1
                outputs.slots[step, group, row] = slot
    return outputs


def empty(plan: Plan) -> Outputs:
    width = plan.rows + plan.padding
    return Outputs(
        aligned(np.full((plan.steps, width), GARBAGE, plan.positions.dtype)),
        aligned(np.full((plan.steps, width), GARBAGE, np.int32)),
        aligned(np.full((plan.steps, len(plan.tables), width), GARBAGE, np.int32)),
    )


def run(plan: Plan, seed: int = 0, cores: int = CORES) -> tuple[Outputs, Report]:
    outputs = empty(plan)
    table = aligned(
        np.array(
            [
                [ids.ctypes.data, ids.strides[0] // 4 if plan.table_rows else 0, columns, size]
                for ids, columns, size in zip(
                    plan.tables, plan.columns, plan.block_sizes, strict=True
                )
            ],
            dtype=np.int64,
        )
    )
    width = plan.rows + plan.padding
    sizes = [
        plan.rows, plan.steps, len(plan.tables), plan.table_rows, plan.max_model_len, width, width,
        len(plan.tables) * width, width,
    ]  # fmt: skip
    report = library().launch(
        "mkv_ascend_draft_plan", ctypes.c_uint32(cores), None, aligned(plan.positions),
        aligned(np.array([plan.num_requests], np.int32)), table, Output(outputs.step_positions),
        Output(outputs.lengths), Output(outputs.slots), int(plan.positions.dtype == np.int64),
        *(ctypes.c_int64(size) for size in sizes), seed=seed,
        reachable={f"block_table_{i}": whole(ids) for i, ids in enumerate(plan.tables)},
    )  # fmt: skip
    return outputs, report


def whole(ids: Integers) -> Integers:
    """The memory up to the last id: a view is not contiguous."""
    last = ids.size and (ids.shape[0] - 1) * (ids.strides[0] // 4) + ids.shape[1]
    return np.lib.stride_tricks.as_strided(ids, (last,), (4,))


def check(plan: Plan, seed: int = 0, cores: int = CORES) -> Report:
    outputs, report = run(plan, seed, cores)
    report.require_clean()
    wanted = expected(plan)
    np.testing.assert_array_equal(outputs.step_positions, wanted.step_positions)
    np.testing.assert_array_equal(outputs.lengths, wanted.lengths)
    np.testing.assert_array_equal(outputs.slots, wanted.slots)
    return report


BLOCK_SIZES = [1, 2, 3, 5, 16, 128, 544, 1024, 2048]


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    rows = draw(st.integers(1, 150))
    sizes = draw(st.lists(st.sampled_from(BLOCK_SIZES), min_size=1, max_size=4))
    columns = [draw(st.integers(0, 12)) for _ in sizes]
    steps = draw(st.integers(1, 20))
    edge = max(count * size for count, size in zip(columns, sizes, strict=True))
    max_model_len = draw(st.integers(1, max(1, edge + 5)))
    wide = draw(st.booleans())
    bits = 63 if wide else 31
    near = st.integers(-3, max_model_len + 3)
    anywhere = st.integers(-(2**bits), 2**bits - 1)
    positions = draw(st.lists(st.one_of(near, near, near, anywhere), min_size=rows, max_size=rows))
    return Plan(
        positions=np.array(positions, np.int64 if wide else np.int32),
        num_requests=draw(st.one_of(st.integers(0, rows + 2), st.just(rows))),
        block_sizes=sizes,
        columns=columns,
        steps=steps,
        max_model_len=max_model_len,
        table_rows=draw(st.one_of(st.just(rows), st.integers(0, rows + 3))),
        padding=draw(st.integers(0, 5)),
    )


def decode(rows: int, groups: int, steps: int, *, wide: bool = False, size: int = 128) -> Plan:
    """A batch in the midst of decoding."""
    dtype = np.int64 if wide else np.int32
    return Plan(
        positions=(np.arange(rows) * 37 % 2000).astype(dtype),
        num_requests=rows,
        block_sizes=[size] * groups,
        columns=[20] * groups,
        steps=steps,
        max_model_len=2048,
        table_rows=rows,
    )


def varied(rows: int, sizes: list[int], steps: int, *, wide: bool = False) -> Plan:
    """Positions near every border; padding, and live requests without a row of the tables."""
    edges = [count * size for size in sizes for count in (1, 2, 6)]
    near = [edge + shift for edge in [0, *edges] for shift in range(-steps - 2, 3)]
    bits = 63 if wide else 31
    near += [2**bits - 1, -(2**bits), 2**31 - 2, -(2**31)]
    # A step that has no divisor in common with how many there are, so all are met.
    positions = [near[(row * 17 + 5) % len(near)] for row in range(rows)]
    return Plan(
        positions=np.array(positions, np.int64 if wide else np.int32),
        num_requests=rows - rows // 5,
        block_sizes=sizes,
        columns=[6] * len(sizes),
        steps=steps,
        max_model_len=max(edges) - 1,
        table_rows=rows - rows // 4,
        padding=steps % 3,
    )


@examples
@given(plan=plans(), seed=st.integers(0, 1000), cores=st.sampled_from([1, 3, CORES]))
@example(plan=decode(256, 4, 4), seed=0, cores=CORES)
@example(plan=decode(65, 2, 4, wide=True), seed=1, cores=2)
@example(plan=decode(9, 3, 128, size=3), seed=2, cores=1)
@example(plan=decode(9, 1, 1, size=3), seed=3, cores=1)
# More than two turns of 64 rows on one core, of powers of two as block sizes and of others.
@example(plan=decode(200, 3, 4, wide=True), seed=4, cores=1)
@example(plan=decode(200, 3, 4, size=5), seed=5, cores=1)
@example(plan=varied(150, [16, 3, 2], 5), seed=6, cores=3)
@example(plan=varied(150, [255, 544, 1], 7, wide=True), seed=7, cores=1)
@example(plan=varied(40, [3, 5, 128, 3], 20, wide=True), seed=8, cores=CORES)
@example(plan=varied(40, [1, 2048], 1), seed=9, cores=2)
# Packed: few rows, without and with gaps between the steps, and as many cells as may be.
@example(plan=decode(1, 4, 4), seed=10, cores=CORES)
@example(plan=decode(7, 9, 4, wide=True), seed=11, cores=1)
@example(plan=decode(7, 10, 4), seed=12, cores=1)
@example(plan=varied(5, [16, 3, 2, 255], 3, wide=True), seed=13, cores=1)
@example(plan=varied(3, [3, 16, 300], 6), seed=14, cores=CORES)
@example(plan=varied(6, [5], 4), seed=15, cores=1)
def test_any_plan_is_as_the_loop_has_it(plan: Plan, seed: int, cores: int) -> None:
    check(plan, seed, cores)


@pytest.mark.parametrize("wide", [False, True])
def test_the_largest_maximum_length(wide: bool) -> None:
    """Where adding a step leaves 32 bits."""
    limit = 2**31 - 1
    plan = decode(8, 1, 3, wide=wide)
    plan.max_model_len = limit
    plan.positions[:] = [0, limit - 5, limit - 4, limit - 3, limit - 2, limit - 1, limit, -1]
    check(plan)


def test_no_id_is_read_behind_the_block_table() -> None:
    """Steps begin in its last column and end behind it."""
    plan = decode(8, 2, 4, size=16)
    plan.max_model_len = 10_000
    plan.positions[:] = 20 * 16 - 3
    check(plan)


def test_no_rows_and_no_steps_launch_nothing() -> None:
    for plan in (decode(0, 2, 4), decode(4, 2, 0)):
        outputs, _ = run(plan)
        assert (outputs.lengths == GARBAGE).all()


def test_bytes_and_balance_at_a_batch_of_256() -> None:
    """In sectors of 32 bytes; benchmarks/ops.py has the goals."""
    report = check(decode(256, 4, 4))
    # Read once: positions and one sector of ids per row and group. Written once: the outputs.
    needed = 256 * 4 + 256 * 4 * 32 + 4 * 256 * 4 * (1 + 1 + 4)
    assert report.total("cost_bytes") <= 1.3 * needed
    work = [sum(core.instructions.values()) for core in report.cores]
    assert max(work) <= 1.2 * sum(work) / CORES


def test_one_row_is_packed() -> None:
    """Steps of one row lie side by side, so all slots are one store."""
    report = check(decode(1, 4, 4))
    assert report.total("MTE3") == 3
