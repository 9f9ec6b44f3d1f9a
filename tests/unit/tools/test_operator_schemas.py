# SPDX-License-Identifier: Apache-2.0
"""Argument lists from a wheel like torch_npu's, and what is compared with them."""

import ast
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import foreign_names
import host_release
import operator_schemas
from emulated_npu.operators.registry import Operator, OperatorEntry
from operator_schemas import Argument

LISTED = """
supported:
  - add.Tensor
custom:
  - func: npu_scale(Tensor self, float factor, *, Tensor? bias=None, int kind=0) -> Tensor
    exposed: True
  - func: npu_scale.named(Tensor self, Dimname dim) -> Tensor
  - func: "npu_split.out(Tensor x, *, int size=2, Tensor(a!) first, Tensor(b!) second)
      -> (Tensor(a!), Tensor(b!))"
  - func: npu_store.value(Tensor key, *, Tensor(a!) key_cache) -> Tensor(a!)
"""
LIBRARY = b"\x00\x01_npu_write(Tensor x, Tensor(a!) out, *, int ? kind = 3) -> ()\x00rest\x02"

Known = dict[str, dict[str, operator_schemas.Arguments]]


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Known:
    monkeypatch.setattr(operator_schemas, "FEWEST", 4)
    wheel = tmp_path / "torch_npu.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, text in zip(operator_schemas.LISTS, (LISTED, "custom: []"), strict=True):
            archive.writestr(f"torch_npu/csrc/aten/{name}", text)
        archive.writestr(operator_schemas.ATB, LIBRARY)
    return operator_schemas.read(wheel)


def test_argument_lists_are_as_python_calls_them(known: Known) -> None:
    assert [*known] == ["npu_scale", "npu_split", "npu_store", "_npu_write"]
    assert known["npu_scale"] == {
        "": (
            Argument("input"),
            Argument("factor"),
            Argument("bias", True, True, None),
            Argument("kind", True, True, 0),
        )
    }
    (split,) = known["npu_split"].values()
    assert [one.name for one in split] == ["x", "size", "out"]
    (store,) = known["npu_store"].values()
    assert store[-1] == Argument("key_cache", by_keyword=True)
    (write,) = known["_npu_write"].values()
    assert write[-1] == Argument("kind", True, True, 3)


def test_a_wheel_of_another_form_is_refused(known: Known, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_schemas, "_schemas", lambda wheel: iter(()))
    with pytest.raises(ValueError, match=r"a\.whl has 0 operators; over 4 are expected"):
        operator_schemas.read(Path("a.whl"))


def same(input, factor, *, kind=0, bias=None): ...
def positional(input, factor, bias=None, *, kind=0): ...
def other_names(x, factor, *, kind=0, bias=None): ...
def other_order(factor, input, *, kind=0, bias=None): ...
def required(input, factor, *, kind=0, bias): ...
def other_defaults(input, factor=1.0, *, kind=1, bias=None): ...


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        (same, []),
        (positional, ["bias by position is not there", "no bias by keyword"]),
        (other_names, ["no input by position", "x by position is not there"]),
        (other_order, ["the order is input, factor"]),
        (required, ["bias is None by default, not required"]),
        (other_defaults, ["factor is required by default, not 1.0", "kind is 0 by default, not 1"]),
    ],
)
def test_what_is_unlike_is_named(known: Known, ours: Callable[..., None], told: list[str]) -> None:
    entry = OperatorEntry("npu_scale", "torch_npu", "", "", "", "", (), (), "")
    object.__setattr__(entry, "function", Operator(entry, ours))
    arguments = operator_schemas.of_kernel(entry)
    assert operator_schemas.differences(arguments, [*known["npu_scale"].values()]) == told


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ("torch_npu.npu_scale(x, 2.0, kind=1)", ""),
        ("torch_npu.npu_scale(*x)", ""),
        ("torch_npu.npu_scale(x, **y)", ""),
        ("torch_npu.npu_unknown(x)", ""),
        ("torch.npu_scale(x)", ""),
        ("torch_npu.npu_split.out(x, out=[a, b])", ""),
        ("torch_npu.npu_scale(x)", "npu_scale: factor not given"),
        ("torch_npu.npu_scale(self=x, factor=2.0)", "npu_scale: no argument self"),
        ("torch_npu.npu_scale(x, 2.0, None)", "npu_scale: 3 arguments by position, of 2"),
        ("torch.ops.npu.npu_scale.default(x, scale=2)", "npu_scale: no argument scale"),
    ],
)
def test_calls_that_no_overload_takes_are_named(
    known: Known, call: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(foreign_names, "tree_of", lambda path: ast.parse(call))
    found = [*operator_schemas.refused_calls([Path("a.py")], known)]
    assert found == ([f"a.py:1: {told}"] if told else [])


def test_without_an_index_nothing_is_compared(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unreachable() -> Path:
        raise host_release.FetchError("no index")

    monkeypatch.setattr(host_release, "torch_npu_wheel", unreachable)
    assert operator_schemas.main(["--if-served"]) == 0
    assert operator_schemas.main([]) == 1
    assert capsys.readouterr().out == "not compared: no index\n" * 2
