# SPDX-License-Identifier: Apache-2.0
"""``draft_plan`` against plain loops, and what it refuses."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.ops.draft_plan import DraftPlanArguments, draft_plan
from mkv_ascend.ops.group_table import group_table
from tests.support.ops import plain
from tests.support.ops.batches import JUNK, groups, junk, make_groups, seeded, some

INDEX_DTYPES = (torch.int32, torch.int64)


def arguments(**changes: Any) -> dict[str, Any]:
    """Right arguments for 3 requests, 2 groups and 2 later passes, some replaced."""
    made = make_groups(seeded(0), 3, [4, 2], [16, 3])
    right: dict[str, Any] = {
        "positions": torch.tensor([3, 30, 61], dtype=torch.int32),
        "num_requests": torch.tensor([3], dtype=torch.int32),
        "block_tables": made.tables,
        "group_table": made.table,
        "max_model_len": 63,
        "step_positions": junk((2, 3)),
        "lengths": junk((2, 3)),
        "slots": junk((2, 2, 3)),
    }
    return right | changes


@some
@given(
    data=st.data(),
    rows=st.integers(0, 20),
    steps=st.integers(0, 5),
    max_model_len=st.integers(1, 4000),
    dtype=st.sampled_from(INDEX_DTYPES),
    seed=st.integers(0, 2**31),
)
def test_as_plain_loops(
    data: st.DataObject, rows: int, steps: int, max_model_len: int, dtype: torch.dtype, seed: int
) -> None:
    generator = seeded(seed)
    made = data.draw(groups(rows, generator))
    live = data.draw(st.integers(0, rows))
    positions = torch.randint(0, max_model_len + 3, (rows,), generator=generator).to(dtype)
    count = len(made.tables)
    outputs = junk((steps, rows), dtype), junk((steps, rows)), junk((steps, count, rows))
    given = DraftPlanArguments(
        positions, torch.tensor([live], dtype=torch.int32), made.tables, made.table, max_model_len,
        *outputs,
    )  # fmt: skip
    draft_plan(given)
    expected = plain.draft_plan(
        positions.tolist(), live, [table.tolist() for table in made.tables], made.block_sizes,
        max_model_len, steps,
    )  # fmt: skip
    for got, wanted in zip(outputs, expected, strict=True):
        assert got.tolist() == wanted
        beyond = got.as_strided((*got.shape[:-1], 5), got.stride(), got.shape[-1])
        assert (beyond == JUNK).all(), "what lies beside an output is not the op's"


def test_edges_by_hand() -> None:
    """A block's end, the table's end, the maximum length, a table of fewer rows, padding."""
    table = torch.tensor([[7, 9], [4, 5], [2, 3], [6, 8]], dtype=torch.int32)
    positions = torch.tensor([3, 6, 8, 20, 0], dtype=torch.int64)
    step_positions, lengths = junk((1, 5), torch.int64), junk((1, 5))
    slots = junk((1, 2, 5))
    given = DraftPlanArguments(
        positions, torch.tensor([4], dtype=torch.int32), [table, table[:2]],
        group_table([table, table[:2]], [4, 4]), 9, step_positions, lengths, slots,
    )  # fmt: skip
    draft_plan(given)
    assert step_positions.tolist() == [[4, 7, 0, 0, 0]]
    assert lengths.tolist() == [[5, 8, 1, 1, 0]]
    assert slots.tolist() == [[[36, 23, -1, -1, -1], [36, 23, -1, -1, -1]]]


def test_a_position_past_the_table_keeps_its_length() -> None:
    given = arguments(positions=torch.tensor([3, 30, 50], dtype=torch.int32))
    draft_plan(DraftPlanArguments(**given))
    assert given["step_positions"].tolist() == [[4, 31, 51], [5, 32, 52]]
    assert given["slots"][0, 1].tolist()[1:] == [-1, -1], "the second table ends at position 6"


WRONG: list[tuple[str, Any, str]] = [
    ("positions", torch.zeros(3), "positions is float32; it must be int32 or int64"),
    ("positions", torch.zeros((3, 1), dtype=torch.int32), r"positions has the shape \(3, 1\)"),
    ("positions", torch.zeros(6, dtype=torch.int32)[::2], "positions has the strides"),
    ("num_requests", torch.zeros(2, dtype=torch.int32), "num_requests has the shape"),
    ("num_requests", torch.zeros(1, dtype=torch.int64), "num_requests is int64"),
    ("block_tables", [], "block_tables is empty"),
    ("block_tables", [torch.zeros((3, 2))] * 2, r"block_tables\[0\] is float32"),
    ("block_tables", [torch.zeros((3, 0), dtype=torch.int32)] * 2, r"block_tables\[0\] .*column"),
    ("group_table", torch.zeros((1, 4), dtype=torch.int64), "group_table has the shape"),
    ("max_model_len", 0, "max_model_len is 0"),
    ("max_model_len", 2**31, "max_model_len is 2147483648"),
    ("step_positions", junk((2, 3), torch.int64), "step_positions is int64; it must be int32"),
    ("lengths", junk((3, 3)), "lengths has the shape"),
    ("slots", junk((2, 1, 3)), "slots has the shape"),
    ("slots", junk((2, 2, 3), torch.int64), "slots is int64"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_wrong_arguments_are_refused_by_name(name: str, value: Any, message: str) -> None:
    given = arguments(**{name: value})
    with pytest.raises(ValueError, match=rf"mkv_ascend::draft_plan: {message}"):
        draft_plan(DraftPlanArguments(**given))


def test_tensors_of_two_devices_are_refused() -> None:
    given = arguments(lengths=junk((2, 3)).to("meta"))
    with pytest.raises(ValueError, match="lengths is on meta, positions on cpu"):
        draft_plan(DraftPlanArguments(**given))


def test_group_table_describes_views() -> None:
    wide = torch.zeros((3, 10), dtype=torch.int32)
    row = group_table([wide[:, :4]], [544]).tolist()[0]
    assert row == [wide.data_ptr(), 10, 4, 544]


@pytest.mark.parametrize(
    ("tables", "sizes", "message"),
    [
        ([], [], "0 block_tables"),
        ([torch.zeros((1, 1), dtype=torch.int32)], [1, 2], "1 block_tables and 2 block_sizes"),
        ([torch.zeros((1, 1), dtype=torch.int32)], [0], r"block_sizes\[0\] is 0"),
        ([torch.zeros((1, 1), dtype=torch.int32)], [16.5], r"block_sizes\[0\] is 16.5"),
        ([torch.zeros((1, 1))], [1], r"block_tables\[0\] is torch.float32"),
        ([torch.zeros((2, 4), dtype=torch.int32)[:, ::2]], [1], "rows dense"),
    ],
)
def test_group_table_refuses(tables: list[torch.Tensor], sizes: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        group_table(tables, sizes)  # type: ignore[arg-type]


def test_opcheck() -> None:
    given = tuple(arguments().values())
    torch.library.opcheck(torch.ops.mkv_ascend.draft_plan.default, given)
