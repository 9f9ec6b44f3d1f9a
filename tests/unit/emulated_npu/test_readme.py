# SPDX-License-Identifier: Apache-2.0
"""What the README of the emulated NPU says of adding an operator is true."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import emulated_npu
from emulated_npu.operators import registry, requirements

README = Path(emulated_npu.__file__).parents[2] / "README.md"


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The operator of the README, registered for this test."""
    monkeypatch.setattr(registry, "OPERATORS", dict(registry.OPERATORS))
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    names = {**vars(requirements), "torch": torch, "operator": registry.operator}
    names["__name__"] = __name__
    exec(compile(textwrap.dedent(code), str(README), "exec"), names)
    return names["npu_scaled_square"]


def test_the_example_computes(example: Any) -> None:
    x = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float16)
    assert example.checked(x, scale=3.0).tolist() == [[3.0, 12.0, 0.75]]
    assert example.checked(x).dtype == torch.float16


def test_the_example_refuses_what_it_does_not_document(example: Any) -> None:
    with pytest.raises(registry.OperatorArgumentError, match="npu_scaled_square: x is int32"):
        example.checked(torch.ones(1, 3, dtype=torch.int32))
    with pytest.raises(registry.OperatorArgumentError, match="npu_scaled_square: x has 1 dim"):
        example.checked(torch.ones(3, dtype=torch.float16))


def test_folders_and_files_that_are_named_exist() -> None:
    text = README.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:csrc|src)/[\w/]*(?:\.py)?)`", text))
    assert len(named) > 5
    assert [name for name in named if not (README.parent / name).exists()] == []
