# SPDX-License-Identifier: Apache-2.0
"""``expand_inputs`` against plain loops, and what it refuses."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.ops.expand_inputs import ExpandInputs, expand_inputs
from tests.support.ops import plain
from tests.support.ops.batches import Groups, groups, junk, make_groups, seeded, some
from tests.support.ops.expand_batches import (
    PADDING_TOKEN,
    PARALLEL_TOKEN,
    as_arguments,
    expect,
    int32,
    random_batch,
)

INDEX_DTYPES = st.sampled_from((torch.int32, torch.int64))


@some
@given(
    data=st.data(),
    lengths=st.lists(st.integers(1, 9), max_size=8),
    sampled=st.integers(1, 4),
    shift=st.booleans(),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 9)),
    max_model_len=st.integers(1, 600),
    rope=st.booleans(),
    dtypes=st.tuples(INDEX_DTYPES, INDEX_DTYPES),
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
    seed: int,
) -> None:
    generator = seeded(seed)
    made = data.draw(groups(len(lengths), generator))
    rejections = [data.draw(st.integers(0, length - 1)) for length in lengths]
    batch = random_batch(generator, lengths, rejections, max_model_len)
    given_arguments = as_arguments(
        batch, made, sampled, shift, max_model_len, padding_requests=padding[0],
        padding_rows=padding[1], rope=rope, dtype=dtypes[0],
        out_dtype=dtypes[1],
    )  # fmt: skip
    expand_inputs(given_arguments)
    wanted = plain.expand_inputs(
        batch, sampled, shift, max_model_len, [table.tolist() for table in made.tables],
        made.block_sizes, PADDING_TOKEN, PARALLEL_TOKEN,
    )  # fmt: skip
    expect(given_arguments, wanted)


def by_hand(sampled: int, shift: bool) -> ExpandInputs:
    """Tokens [a b c] at positions 7 8 9 with c rejected, and [d] at 14; blocks of 8."""
    batch = plain.TargetBatch([[1, 2, 3], [4]], [[7, 8, 9], [14]], [], [70, 80], [1, 0])
    table = int32([[2, 3], [4, 5]]).reshape(2, 2)
    given_arguments = as_arguments(batch, Groups([table], [8]), sampled, shift, 16, rope=False)
    expand_inputs(given_arguments)
    return given_arguments


def test_a_shifted_head_by_hand() -> None:
    given_arguments = by_hand(1, True)
    assert given_arguments.out_token_ids.tolist() == [2, 70, PADDING_TOKEN, 80]
    assert given_arguments.out_positions.tolist() == [7, 8, 0, 14]
    assert given_arguments.slots.tolist() == [[23, 24, -1, 46]]
    assert given_arguments.sample_indices.tolist() == [1, 3]
    assert given_arguments.next_positions.tolist() == [8, 14]
    assert given_arguments.lengths.tolist() == [10, 15]


def test_a_draft_model_by_hand() -> None:
    given_arguments = by_hand(1, False)
    assert given_arguments.out_token_ids.tolist() == [1, 2, 70, PADDING_TOKEN, 4, 80]
    assert given_arguments.out_positions.tolist() == [7, 8, 9, 0, 14, 15]
    assert given_arguments.slots.tolist() == [[23, 24, 25, -1, 46, 47]]
    assert given_arguments.sample_indices.tolist() == [2, 5]
    assert given_arguments.next_positions.tolist() == [9, 15]
    assert given_arguments.lengths.tolist() == [11, 16]
    assert given_arguments.out_query_start_loc.tolist() == [0, 4, 6]


def test_parallel_drafting_by_hand() -> None:
    """The second request's last row lies at the maximum length."""
    given_arguments = by_hand(3, True)
    assert given_arguments.out_token_ids.tolist() == [2, 70, 6, 6, 5, 80, 6, 6]
    assert given_arguments.out_positions.tolist() == [7, 8, 9, 10, 0, 14, 15, 0]
    assert given_arguments.masked_mask.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert given_arguments.rejected_mask.tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    assert given_arguments.slots.tolist() == [[23, 24, 25, 26, -1, 46, 47, -1]]
    assert given_arguments.hidden_rows.tolist() == [0, 1, 2, 5]


def test_rows_that_do_not_fit_are_not_written() -> None:
    whole = by_hand(1, False)
    short = {
        name: getattr(whole, name)[..., :4]
        for name in ("out_token_ids", "out_positions", "rejected_mask", "masked_mask", "slots")
    }
    for tensor in short.values():
        tensor.fill_(9)
    expand_inputs(whole._replace(**short))
    assert whole.out_token_ids.tolist() == [1, 2, 70, PADDING_TOKEN, 4, 80]


WRONG: list[tuple[str, Any, str]] = [
    ("token_ids", torch.zeros(4), "token_ids is float32; it must be int32 or int64"),
    ("positions", torch.zeros(3, dtype=torch.int32), "positions has the shape"),
    ("next_token_ids", torch.zeros(2), "next_token_ids is float32"),
    ("query_start_loc", torch.zeros(2, dtype=torch.int32), "query_start_loc has the shape"),
    ("num_requests", torch.zeros(1), "num_requests is float32"),
    ("group_table", torch.zeros((2, 4), dtype=torch.int64), "group_table has the shape"),
    ("sampled_per_request", 0, "sampled_per_request is 0"),
    ("max_model_len", -1, "max_model_len is -1"),
    ("out_positions", junk((5,)), "out_positions has the shape"),
    ("rejected_mask", junk((6,)), "rejected_mask is int32; it must be int8 or bool"),
    ("masked_mask", junk((7,), torch.int8), "masked_mask has the shape"),
    ("sample_indices", junk((4,)), "sample_indices has the shape"),
    ("out_query_start_loc", junk((2,)), "out_query_start_loc has the shape"),
    ("lengths", junk((2,), torch.int64), "lengths is int64"),
    ("next_positions", junk((3,)), "next_positions has the shape"),
    ("slots", junk((2, 6)), "slots has the shape"),
    ("num_rejected", torch.zeros(3, dtype=torch.int32), "num_rejected has the shape"),
    ("rope_positions", torch.zeros((3, 4), dtype=torch.int32), "must be given together"),
    ("hidden_rows", junk((5,)), "hidden_rows has the shape"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_wrong_arguments_are_refused_by_name(name: str, value: Any, message: str) -> None:
    given_arguments = by_hand(1, False)
    with pytest.raises(ValueError, match=f"mkv_ascend::expand_inputs: .*{message}"):
        expand_inputs(given_arguments._replace(**{name: value}))


@pytest.mark.parametrize("rope", [False, True])
def test_opcheck(rope: bool) -> None:
    generator = seeded(1)
    batch = random_batch(generator, [3, 1], [1, 0], 30)
    made = make_groups(generator, 2, [2, 3], [16, 3])
    given_arguments = as_arguments(batch, made, 2, False, 30, rope=rope)
    torch.library.opcheck(torch.ops.mkv_ascend.expand_inputs.default, tuple(given_arguments))
