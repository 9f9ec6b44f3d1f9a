# SPDX-License-Identifier: Apache-2.0
"""The arguments of each op: listed in Python and in C++, and the lists are the same."""

from __future__ import annotations

import re

import pytest
import torch

from mkv_ascend import ops
from mkv_ascend.ops import implementations
from mkv_ascend.ops.expand_inputs import ExpandInputs
from mkv_ascend.ops.registration import OPS, Written, arguments_of
from tests.support.ascendc_host import ROOT

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
        r"\b(?:(ADDRESS|SIZE|WORD)|(WIDE))\((\w+)\)",
        (KERNELS / "launchers.h").read_text("utf-8"),
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
