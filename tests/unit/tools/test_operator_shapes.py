# SPDX-License-Identifier: Apache-2.0
"""Shape functions of a file like torch_npu's, and results that are compared with them."""

import zipfile
from pathlib import Path

import pytest
import torch

import operator_schemas
import operator_shapes

FILE = """
import torch
import torch_npu
from torch.library import Library, impl
from torch_npu.npu._backends import get_soc_version
m, m_aten = Library("npu", "IMPL", "Meta"), Library("aten", "IMPL", "Meta")
TORCH_DTYPE_ENUM_VALUE_TO_SCALAR_TYPE_MAP = {1: torch.int8, 5: torch.float16, 285: torch.int8}

@impl(m_aten, "add")
def other(): ...

@impl(m, "npu_halve")
def halve(input, *, dst_type=None):
    if dst_type == torch_npu.int4:
        raise RuntimeError("no int4")
    dtype = TORCH_DTYPE_ENUM_VALUE_TO_SCALAR_TYPE_MAP.get(dst_type, input.dtype)
    return torch.empty(input.shape[0] // 2, dtype=dtype, device=input.device), [input]

torch.ops.npu.npu_halve.default
"""
LISTED = "custom: [{func: 'npu_halve(Tensor self, *, int? dst_type=None) -> (Tensor, Tensor[])'}]"


@pytest.fixture
def comparison(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> operator_shapes.Comparison:
    monkeypatch.setattr(operator_shapes, "FEWEST", 1)
    wheel = tmp_path / "torch_npu.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(operator_shapes.FUNCTIONS, FILE)
        archive.writestr(operator_schemas.ATB, b"")
        for name, text in zip(operator_schemas.LISTS, (LISTED, "custom: []"), strict=True):
            archive.writestr(f"torch_npu/csrc/aten/{name}", text)
    return operator_shapes.Comparison(wheel)


@pytest.mark.parametrize(
    ("rows", "dtype", "told"),
    [
        (2, torch.float16, ""),
        (3, torch.float16, "real: (((2,), torch.float16), "),
        (2, torch.int8, "real: (((2,), torch.float16), "),
    ],
)
def test_another_size_or_dtype_is_told(
    comparison: operator_shapes.Comparison, rows: int, dtype: torch.dtype, told: str
) -> None:
    assert [*comparison.functions] == ["npu_halve"]

    def kernel(input: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return torch.zeros(rows, dtype=dtype), [input]

    watched = comparison.watched("npu_halve", kernel, comparison.functions["npu_halve"])
    watched(torch.zeros(4, dtype=torch.float16))
    assert told in comparison.unlike.get("npu_halve", "")
    assert bool(comparison.unlike) is bool(told)


def test_a_dtype_goes_by_its_number_and_a_refusal_is_told(
    comparison: operator_shapes.Comparison,
) -> None:
    def kernel(
        input: torch.Tensor, *, dst_type: torch.dtype | int
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        return torch.zeros(2, dtype=torch.int8), [input]

    watched = comparison.watched("npu_halve", kernel, comparison.functions["npu_halve"])
    watched(torch.zeros(4), dst_type=torch.int8)
    assert not comparison.unlike
    watched(torch.zeros(4), dst_type=285)
    assert "RuntimeError: no int4" in comparison.unlike["npu_halve"]
    assert [*comparison.lines()][-1] == "1 operators, 2 calls, 1 operators unlike"
