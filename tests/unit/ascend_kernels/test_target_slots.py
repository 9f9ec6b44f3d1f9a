# SPDX-License-Identifier: Apache-2.0
"""The AscendC kernel of target_slots on the CPU: every slot as a loop over integers gives it, and
nothing reported by the checker."""

import ctypes
from dataclasses import dataclass

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
class Batch:
    """Requests of so many tokens; sizes of outputs, one per group."""

    positions: Integers
    query_lengths: list[int]
    num_requests: int
    block_sizes: list[int]
    columns: list[int]
    sizes: list[int]
    table_rows: int

    @property
    def starts(self) -> list[int]:
        return [sum(self.query_lengths[:count]) for count in range(len(self.query_lengths) + 1)]

    def tables(self) -> list[Integers]:
        """Ids that are seldom the same."""
        made = []
        for group, columns in enumerate(self.columns):
            ids = np.arange(self.table_rows * columns, dtype=np.int32) * 7919 + group
            made.append(aligned((ids % 100003).reshape(self.table_rows, columns)))
        return made


def expected(batch: Batch) -> list[list[int]]:
    """Plain loops over Python's integers."""
    outputs = [[-1] * size for size in batch.sizes]
    starts = batch.starts
    for group, table in enumerate(batch.tables()):
        size = batch.block_sizes[group]
        for request in range(min(batch.num_requests, len(batch.query_lengths))):
            for token in range(starts[request], starts[request + 1]):
                position = int(batch.positions[token])
                held = (
                    0 <= position < size * batch.columns[group]
                    and request < batch.table_rows
                    and token < batch.sizes[group]
                )
                if held:
                    column, inside = divmod(position, size)
                    outputs[group][token] = int(table[request, column]) * size + inside
    return outputs


def check(batch: Batch, seed: int = 0, cores: int = CORES) -> Report:
    tables = batch.tables()
    outputs = [aligned(np.full(size, GARBAGE, np.int32)) for size in batch.sizes]
    groups = aligned(
        np.array(
            [
                [table.ctypes.data, columns, columns, size]
                for table, columns, size in zip(
                    tables, batch.columns, batch.block_sizes, strict=True
                )
            ],
            np.int64,
        )
    )
    places = aligned(np.array([[out.ctypes.data, out.size] for out in outputs], np.int64))
    sizes = [
        len(batch.positions), len(batch.query_lengths), len(tables), batch.table_rows,
        max(batch.sizes),
    ]  # fmt: skip
    reachable: dict[str, object] = {f"block_table_{i}": one for i, one in enumerate(tables)}
    reachable |= {f"slots_{i}": Output(one) for i, one in enumerate(outputs)}
    report = library().launch(
        "mkv_ascend_target_slots", ctypes.c_uint32(cores), None, aligned(batch.positions),
        aligned(np.array(batch.starts, np.int32)),
        aligned(np.array([batch.num_requests], np.int32)), groups, places,
        int(batch.positions.dtype == np.int64), *(ctypes.c_int64(size) for size in sizes),
        seed=seed, reachable=reachable,
    )  # fmt: skip
    report.require_clean()
    assert [out.tolist() for out in outputs] == expected(batch)
    return report


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    lengths = draw(st.lists(st.sampled_from([0, 1, 1, 1, 2, 5, 70]), max_size=30))
    block_sizes = draw(
        st.lists(st.sampled_from([1, 3, 16, 128, 544, 2048]), min_size=1, max_size=4)
    )
    columns = [draw(st.integers(0, 9)) for _ in block_sizes]
    wide = draw(st.booleans())
    edge = max(count * size for count, size in zip(columns, block_sizes, strict=True))
    bits = 63 if wide else 31
    anywhere = st.one_of(st.integers(-2, edge + 2), st.integers(-(2**bits), 2**bits - 1))
    positions: list[int] = []
    for length in lengths:
        first = draw(st.integers(0, edge + 2))
        positions += range(first, first + length)
    for _ in range(draw(st.integers(0, 4)) if positions else 0):
        positions[draw(st.integers(0, len(positions) - 1))] = draw(anywhere)
    # Tokens of padding.
    positions += [draw(anywhere)] * draw(st.integers(0, 70))
    requests = len(lengths)
    return Batch(
        positions=np.array(positions, np.int64 if wide else np.int32),
        query_lengths=lengths,
        num_requests=draw(st.one_of(st.just(requests), st.integers(0, requests + 2))),
        block_sizes=block_sizes,
        columns=columns,
        sizes=[draw(st.integers(0, len(positions) + 150)) for _ in block_sizes],
        table_rows=draw(st.one_of(st.just(requests), st.integers(0, requests + 2))),
    )


def mixed(requests: int, length: int, groups: int, *, wide: bool = True) -> Batch:
    """Requests of one length in the midst of decoding."""
    positions = [(request * 37) % 1500 + i for request in range(requests) for i in range(length)]
    return Batch(
        positions=np.array(positions, np.int64 if wide else np.int32),
        query_lengths=[length] * requests,
        num_requests=requests,
        block_sizes=[128, 544, 16, 3][:groups],
        columns=[20, 5, 130, 700][:groups],
        sizes=[len(positions)] * groups,
        table_rows=requests,
    )


def made(
    requests: list[list[int]], sizes: list[int], columns: list[int], *, wide: bool = False
) -> Batch:
    """Requests by their positions; outputs are as long as the batch."""
    positions = [position for request in requests for position in request]
    return Batch(
        positions=np.array(positions, np.int64 if wide else np.int32),
        query_lengths=[len(request) for request in requests],
        num_requests=len(requests),
        block_sizes=sizes,
        columns=columns,
        sizes=[len(positions)] * len(sizes),
        table_rows=len(requests),
    )


def counting(start: int, length: int) -> list[int]:
    return list(range(start, start + length))


# Positions of a request that do not follow each other, from before the table to behind it.
JUMPS = [
    [5, 9, 7, 8, 8, 8, 9, 10, 3, 2, 1, 0, -1, -2, -1, 0, 1, 2, 46, 47, 48, 49, 2**31 - 1, -(2**31)],
    [-3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7, 47, 48, 0, 0, 15, 16, 16, 15, -(2**31), 2**31 - 1, 4],
]
# A request goes on where the one before ends; some have no token.
NEIGHBOURS = [[3], [4], [], [5, 6], [], [], [7, 8, 9], [10], [0], [], [1], [2]]
# Few long requests among many short ones: the first guess of a token's request is far off.
UNEVEN = [[i] for i in range(50)] + [counting(7, 400)] + [[i, i + 1] for i in range(60)]


def shorter(batch: Batch) -> Batch:
    """Outputs of several lengths, requests that are padding, and one without a row of the table."""
    batch.num_requests -= 1
    batch.table_rows -= 2
    tokens = len(batch.positions)
    batch.sizes = [tokens // 2, tokens + 300, 0, tokens][: len(batch.sizes)]
    return batch


@examples
@given(batch=batches(), seed=st.integers(0, 1000), cores=st.sampled_from([1, 3, CORES]))
@example(batch=mixed(256, 5, 4), seed=0, cores=CORES)
@example(batch=mixed(3, 300, 4, wide=False), seed=1, cores=2)
# More than two tiles on one core, where block sizes are powers of two, and where none is.
@example(batch=made([counting(5, 600)], [16], [40], wide=True), seed=2, cores=1)
@example(batch=made([counting(5, 300), counting(0, 300)], [3, 544], [210, 2]), seed=3, cores=1)
@example(batch=made([[i] for i in range(560)], [1, 2], [560, 280]), seed=4, cores=1)
@example(batch=made([counting(2, 520)], [1], [600]), seed=5, cores=1)
# Groups of one shape behind each other, and of one block size with tables that end elsewhere.
@example(batch=made([counting(3, 300)], [3, 3, 3, 16, 16], [99, 99, 80, 20, 9]), seed=6, cores=1)
@example(batch=made([counting(9, 40)], [16, 3, 16, 3, 255, 3000], [4] * 6), seed=7, cores=1)
@example(batch=made([counting(40, 40)], [3, 5, 7, 9, 6], [40] * 5), seed=16, cores=1)
@example(batch=made(JUMPS, [16, 3, 1], [3, 16, 48]), seed=8, cores=1)
@example(batch=made(JUMPS, [5, 2], [9, 24], wide=True), seed=9, cores=3)
@example(batch=made(NEIGHBOURS, [16, 3], [1, 4]), seed=10, cores=1)
@example(batch=made(NEIGHBOURS * 9, [2], [6]), seed=11, cores=CORES)
@example(batch=made(UNEVEN, [128, 3], [4, 136]), seed=12, cores=CORES)
@example(batch=made(UNEVEN[::-1], [128, 3], [4, 136]), seed=13, cores=CORES)
@example(batch=shorter(mixed(60, 3, 4)), seed=14, cores=3)
@example(batch=shorter(made([counting(0, 9)] * 3, [16, 3], [1, 3])), seed=15, cores=1)
def test_any_batch_is_as_the_loop_has_it(batch: Batch, seed: int, cores: int) -> None:
    check(batch, seed, cores)


def test_bytes_and_balance() -> None:
    """512 requests with 5 tokens each, 4 groups; benchmarks/ops.py has the goals."""
    report = check(mixed(512, 5, 4))
    tokens, ids = 512 * 5, 512 * 4 * 32
    assert report.total("cost_bytes") <= 1.5 * (tokens * 8 + 513 * 4 + ids + tokens * 4 * 4)
    # No id is fetched for each token, and none is looked at by the scalar unit.
    assert report.total("MTE2") <= 512 * 4 * 1.5
    assert report.total("S") <= 512 * 10
    work = [sum(core.instructions.values()) for core in report.cores]
    assert max(work) <= 1.2 * sum(work) / CORES
