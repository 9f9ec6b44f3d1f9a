# SPDX-License-Identifier: Apache-2.0
"""The AscendC kernel of ``expand_inputs`` on the CPU: as plain loops, and without a problem."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.ascend_kernels import launches
from tests.unit.ops import plain
from tests.unit.ops.batches import groups, make_groups, seeded, some
from tests.unit.ops.expand_batches import (
    PADDING_TOKEN,
    PARALLEL_TOKEN,
    as_arguments,
    expect,
    random_batch,
)

INDEX_DTYPES = st.sampled_from((torch.int32, torch.int64))


@some
@given(
    data=st.data(),
    lengths=st.lists(st.one_of(st.integers(1, 9), st.just(700)), max_size=8),
    sampled=st.integers(1, 4),
    shift=st.booleans(),
    padding=st.tuples(st.integers(0, 3), st.sampled_from((0, 1, 9, 600))),
    max_model_len=st.integers(1, 1500),
    rope=st.booleans(),
    dtypes=st.tuples(INDEX_DTYPES, INDEX_DTYPES),
    cores=st.sampled_from((1, 2, 7, 40)),
    seed=st.integers(0, 2**31),
)
def test_as_plain_loops(
    data: st.DataObject,
    lengths: list[int],
    sampled: int,
    shift: bool,
    padding: tuple[int, int],
    max_model_len: int,
    rope: bool,
    dtypes: tuple[torch.dtype, torch.dtype],
    cores: int,
    seed: int,
) -> None:
    generator = seeded(seed)
    made = data.draw(groups(len(lengths), generator))
    rejections = [data.draw(st.integers(0, min(length - 1, 5))) for length in lengths]
    batch = random_batch(generator, lengths, rejections, max_model_len)
    arguments = as_arguments(
        batch, made, sampled, shift, max_model_len, padding_requests=padding[0],
        padding_rows=padding[1], rope=rope, dtype=dtypes[0],
        out_dtype=dtypes[1],
    )  # fmt: skip
    launches.expand_inputs(arguments, cores=cores, seed=seed).require_clean()
    wanted = plain.expand_inputs(
        batch, sampled, shift, max_model_len, [table.tolist() for table in made.tables],
        made.block_sizes, PADDING_TOKEN, PARALLEL_TOKEN,
    )  # fmt: skip
    expect(arguments, wanted)


@pytest.mark.parametrize("shift", [False, True])
def test_more_than_one_core_holds_at_once(shift: bool) -> None:
    """More runs, rows and requests than the buffers of a core, which are filled to the last."""
    generator = seeded(3)
    lengths = [1 + index % 5 for index in range(300)] + [9000]
    made = make_groups(generator, len(lengths), [80, 700], [128, 16])
    rejections = [length // 2 for length in lengths[:-1]] + [0]
    batch = random_batch(generator, lengths, rejections, 900)
    arguments = as_arguments(batch, made, 8, shift, 10_000, out_dtype=torch.int64)
    launches.expand_inputs(arguments, cores=1).require_clean()
    wanted = plain.expand_inputs(
        batch, 8, shift, 10_000, [table.tolist() for table in made.tables], made.block_sizes,
        PADDING_TOKEN, PARALLEL_TOKEN,
    )  # fmt: skip
    expect(arguments, wanted)
