# SPDX-License-Identifier: Apache-2.0
"""``target_slots`` against plain loops, and what it refuses."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mkv_ascend.ops.target_slots import TargetSlotsArguments, slot_table, target_slots
from tests.support.ops import plain
from tests.support.ops.batches import JUNK, groups, junk, make_groups, seeded, some

NO_LIMIT = 2**31


def int32(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@some
@given(
    data=st.data(),
    lengths=st.lists(st.integers(0, 9), max_size=8),
    padding=st.tuples(st.integers(0, 3), st.integers(0, 9)),
    dtype=st.sampled_from((torch.int32, torch.int64)),
    seed=st.integers(0, 2**31),
)
def test_as_plain_loops(
    data: st.DataObject, lengths: list[int], padding: tuple[int, int], dtype: torch.dtype, seed: int
) -> None:
    generator = seeded(seed)
    made = data.draw(groups(len(lengths), generator))
    begins = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    positions = torch.randint(0, 5000, (begins[-1],), generator=generator).to(dtype)
    padded = torch.cat((positions, torch.full((padding[1],), JUNK, dtype=dtype)))
    outputs = [junk((data.draw(st.integers(0, 90)),)) for _ in made.tables]
    given = TargetSlotsArguments(
        padded, int32(begins + [JUNK] * padding[0]), int32([len(lengths)]), made.tables,
        made.table, outputs, slot_table(outputs),
    )  # fmt: skip
    target_slots(given)
    for table, size, got in zip(made.tables, made.block_sizes, outputs, strict=True):
        wanted = [
            plain.slot(table.tolist(), size, request, int(positions[token]), NO_LIMIT)
            for request in range(len(lengths))
            for token in range(begins[request], begins[request + 1])
        ]
        wanted = (wanted + [-1] * got.shape[0])[: got.shape[0]]
        assert got.tolist() == wanted


def arguments(**changes: Any) -> dict[str, Any]:
    made = make_groups(seeded(0), 2, [4, 2], [16, 3])
    outputs = [junk((6,)), junk((9,))]
    right: dict[str, Any] = {
        "positions": torch.tensor([3, 4, 5, 61]),
        "query_start_loc": int32([0, 3, 4]),
        "num_requests": int32([2]),
        "block_tables": made.tables,
        "group_table": made.table,
        "slots": outputs,
        "slot_table": slot_table(outputs),
    }
    return right | changes


WRONG: list[tuple[str, Any, str]] = [
    ("positions", torch.zeros(3), "positions is float32"),
    ("query_start_loc", torch.zeros(3, dtype=torch.int64), "query_start_loc is int64"),
    ("query_start_loc", int32([]), "query_start_loc is empty"),
    ("num_requests", int32([1, 2]), "num_requests has the shape"),
    ("group_table", torch.zeros((2, 3), dtype=torch.int64), "group_table has the shape"),
    ("block_tables", [], "block_tables is empty"),
    ("slots", [junk((6,))], "slots holds 1 tensors for 2 block_tables"),
    ("slots", [junk((6,)), junk((6,), torch.int64)], r"slots\[1\] is int64"),
    ("slot_table", torch.zeros((2, 1), dtype=torch.int64), "slot_table has the shape"),
]


@pytest.mark.parametrize(("name", "value", "message"), WRONG)
def test_wrong_arguments_are_refused_by_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"mkv_ascend::target_slots: {message}"):
        target_slots(TargetSlotsArguments(**arguments(**{name: value})))


def test_slot_table_refuses() -> None:
    with pytest.raises(ValueError, match="slots is empty"):
        slot_table([])
    with pytest.raises(ValueError, match=r"slots\[0\] is torch.int32 \(3,\) with strides \(2,\)"):
        slot_table([torch.zeros(6, dtype=torch.int32)[::2]])


def test_opcheck() -> None:
    torch.library.opcheck(torch.ops.mkv_ascend.target_slots.default, tuple(arguments().values()))
