# SPDX-License-Identifier: Apache-2.0
"""Wrong values, with ``MKV_ASCEND_OPS_CHECKS``: refused by the argument's name and place."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mkv_ascend import ops
from mkv_ascend.ops import implementations
from mkv_ascend.ops.expand_inputs import ExpandInputs
from mkv_ascend.ops.registration import OPS, Written, arguments_of, value_checked
from mkv_ascend.ops.target_slots import slot_table
from mkv_ascend.ops.zero_blocks import page_table
from tests.support.ascendc_host import ROOT
from tests.support.ops.batches import Groups, junk, make_groups, seeded
from tests.support.ops.expand_batches import as_arguments, int32
from tests.support.ops.plain import TargetBatch


@pytest.fixture(scope="module", autouse=True)
def implementation() -> None:
    """The checks stand before any of them."""
    ops.load_all()


def call(name: str, *arguments: Any) -> None:
    for implementation in ("reference", "native"):
        value_checked(OPS[name], implementation)(*arguments)


def draft_plan_arguments() -> list[Any]:
    made = make_groups(seeded(0), 3, [4, 2], [16, 16])
    return [
        int32([3, 30, 20]), int32([2]), made.tables, made.table, 60, junk((2, 3)), junk((2, 3)),
        junk((2, 2, 3)),
    ]  # fmt: skip


def expand_arguments() -> list[Any]:
    batch = TargetBatch([[1, 2, 3], [4]], [[7, 8, 9], [14]], [], [70, 80], [1, 0])
    table = int32([2, 3, 4, 5]).view(2, 2)
    return list(as_arguments(batch, Groups([table], [8]), 1, False, 16, rope=False))


def target_arguments() -> list[Any]:
    made = make_groups(seeded(0), 2, [4], [16])
    outputs = [junk((6,))]
    return [
        torch.tensor([3, 4, 5, 40]), int32([0, 3, 4]), int32([2]), made.tables, made.table, outputs,
        slot_table(outputs),
    ]  # fmt: skip


def zero_arguments() -> list[Any]:
    caches = [torch.ones((3, 8)), torch.ones((5, 8))]
    return [torch.tensor([4, -1]), caches, page_table(caches)]


MAKERS: dict[str, Callable[[], list[Any]]] = {
    "draft_plan": draft_plan_arguments,
    "expand_inputs": expand_arguments,
    "target_slots": target_arguments,
    "zero_blocks": zero_arguments,
}


def set_at(argument: int, place: Any, value: int, item: int | None = None) -> Callable[..., None]:
    """A change of one element of an argument, or of an item of it."""

    def change(arguments: list[Any]) -> None:
        tensor = arguments[argument] if item is None else arguments[argument][item]
        tensor[place] = value

    return change


def moved_table(arguments: list[Any]) -> None:
    arguments[2] = [table.clone() for table in arguments[2]]


WRONG = [
    ("draft_plan", set_at(0, 1, -5), r"positions\[1\] is -5; a live request's position is 0"),
    ("draft_plan", set_at(1, 0, 4), "num_requests is 4; there are 3 rows"),
    ("draft_plan", set_at(2, (1, 1), -1, 1), r"block_tables\[1\] looked up\[\d\] is -1; ids of"),
    ("draft_plan", set_at(2, (0, 0), 2**27, 0), r"block_tables\[0\] looked up\[0\] is 134217728"),
    ("draft_plan", moved_table, r"group_table\[0\] describes another tensor"),
    ("expand_inputs", set_at(1, 1, 9), r"positions\[1\] is 9; a request's tokens follow"),
    ("expand_inputs", set_at(3, 1, 9), r"query_start_loc is \[0, 9, 4\]; it must rise"),
    ("expand_inputs", set_at(19, 0, 3), r"num_rejected\[0\] is 3; a live request keeps one"),
    ("expand_inputs", set_at(5, (1, 1), -2, 0), r"block_tables\[0\] looked up\[\d\] is -2"),
    ("target_slots", set_at(0, 3, -1), r"positions\[3\] is -1; a token's position is 0"),
    ("target_slots", set_at(3, (1, 2), -9, 0), r"block_tables\[0\] looked up\[3\] is -9"),
    ("target_slots", set_at(6, (0, 1), 5), r"slot_table\[0\] describes another tensor"),
    ("zero_blocks", set_at(0, 1, 5), r"block_ids\[1\] is 5; no cache has more than 5 blocks"),
    ("zero_blocks", set_at(0, 1, 4), "block_ids holds 4 more than once"),
    ("zero_blocks", set_at(2, (0, 0), 8), r"page_table\[0\] describes another tensor"),
]


@pytest.mark.parametrize(("name", "change", "message"), WRONG)
def test_wrong_values_are_refused(
    name: str, change: Callable[[list[Any]], None], message: str
) -> None:
    arguments = MAKERS[name]()
    call(name, *arguments)
    change(arguments)
    with pytest.raises(ValueError, match=f"mkv_ascend::{name}: {message}"):
        call(name, *arguments)


def test_too_few_rows_are_refused() -> None:
    arguments = expand_arguments()
    for index in (10, 11, 12, 13, 18):
        arguments[index] = arguments[index][..., :5]
    with pytest.raises(ValueError, match="out_token_ids has 5 rows; the requests need 6"):
        call("expand_inputs", *arguments)


def test_only_what_is_looked_up_is_checked() -> None:
    """Blocks past a request's tokens, rows past the live ones and empty batches may hold junk."""
    arguments = draft_plan_arguments()
    arguments[2][0][2] = -1
    arguments[2][0][0, 1:] = -1
    call("draft_plan", *arguments)
    for name, place in (("draft_plan", 1), ("expand_inputs", 4), ("target_slots", 2)):
        empty = MAKERS[name]()
        empty[place][0] = 0
        call(name, *empty)


def test_the_op_takes_all_arguments_behind_the_checks() -> None:
    """PyTorch drops trailing arguments that equal a schema's default; then there must be none."""
    for op in OPS.values():
        schema = getattr(torch.ops.mkv_ascend, op.name).default._schema
        assert not any(argument.has_default_value() for argument in schema.arguments), op.name


ops.load_all()
KERNELS = ROOT / "csrc" / "ascend"


@pytest.mark.parametrize("implementation", [implementations.NATIVE, implementations.ASCENDC_HOST])
@pytest.mark.parametrize("name", sorted(OPS))
def test_schemas_of_python_and_of_kernels_are_the_same(name: str, implementation: str) -> None:
    kernel = implementations.kernel_of(implementation, name).default
    namespace = implementations.LIBRARIES[implementation].namespace
    assert str(kernel._schema) == f"{namespace}::{OPS[name].schema}"
    assert str(getattr(torch.ops.mkv_ascend, name).default._schema) == (
        f"mkv_ascend::{OPS[name].schema}"
    )


def test_schema_by_hand() -> None:
    def op(
        given: torch.Tensor, lists: list[torch.Tensor], out: Written, more: list[Written],
        maybe: torch.Tensor | None, written: Written | None, count: int, flag: bool,
    ) -> None: ...  # fmt: skip

    assert arguments_of(op) == (
        "Tensor given, Tensor[] lists, Tensor(a!) out, Tensor(b!)[] more, Tensor? maybe, "
        "Tensor(c!)? written, int count, bool flag"
    )


def test_an_annotation_without_a_schema_is_refused() -> None:
    def op(scale: float) -> None: ...

    with pytest.raises(TypeError, match="scale is annotated as <class 'float'>"):
        arguments_of(op)


def test_the_kernel_of_expand_inputs_takes_its_list_in_order() -> None:
    """The signature is written out, since CANN's build looks for it in the text."""
    words = re.findall(
        r"\b(?:(ADDRESS|SIZE|WORD)|(WIDE))\((\w+)\)", (KERNELS / "launchers.h").read_text("utf-8")
    )
    listed = [(kind or "WORD", name if kind else f"wide_{name}") for kind, _, name in words]
    types = {"GM_ADDR": "ADDRESS", "const int64_t": "SIZE", "const int32_t": "WORD"}
    text = (KERNELS / "expand_inputs.cpp").read_text("utf-8")
    found = re.search(r"mkv_expand_inputs_kernel\(([^)]*)\) \{", text)
    assert found is not None
    taken = [argument.strip().rsplit(" ", 1) for argument in found[1].split(",")]
    assert [(types[kind], name) for kind, name in taken] == listed
    tensors = {name for kind, name in listed if kind == "ADDRESS"}
    # Block tables are reached through the group table.
    named = set(ExpandInputs._fields) - {"block_tables"}
    assert tensors <= named
