# SPDX-License-Identifier: Apache-2.0
"""Shapes and dtypes that the emulated operators return, beside torch_npu's own shape functions.

    .venv/bin/python tools/operator_shapes.py

The wheel that vllm-ascend pins has, for PyTorch's graphs, a function for most operators that gives
tensors of the results' shapes. It is plain Python and needs no CANN. The unit tests of the emulated
operators run once more; behind each call of theirs the operator's shape function is asked as well.
"""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch

import operator_schemas

ROOT = Path(__file__).resolve().parent.parent
TESTS = "tests/unit/emulated_npu"
FUNCTIONS = "torch_npu/op_plugin/meta/_meta_registrations.py"
WHEEL = "MKV_TORCH_NPU_WHEEL"
"""Environment variable by which the tests' process knows the wheel."""
CHIP = 223
"""torch_npu's number of an Ascend 910B4."""
DTYPES = "TORCH_DTYPE_ENUM_VALUE_TO_SCALAR_TYPE_MAP"
"""The shape functions' own table: PyTorch's number of a dtype -> the dtype."""
FEWEST = 200
"""Below this many functions the wheel was not read as it is meant."""
UNLIKE: dict[str, tuple[tuple[int, ...], str]] = {
    "npu_fused_infer_attention_score": ((1,), "an lse that is not asked for is documented as (1,)"),
    "npu_fused_infer_attention_score_v2": ((1,), "as above"),
    "npu_fusion_attention": ((0,), "a head size of the values alone is documented"),
    "npu_moe_init_routing_v2": ((2, 3), "counts and scales are there where nothing asks for them"),
}
"""Results of an operator that are not compared, by place: why."""

Shape = Any
"""Size and dtype of a tensor; nested as the results are."""


class _Stub(ModuleType):
    def __init__(self, name: str, **attributes: Any) -> None:
        super().__init__(name)
        vars(self).update(attributes)


def shape_functions(text: str) -> tuple[dict[str, Callable[..., Any]], dict[torch.dtype, int]]:
    """Operator -> its shape function, and dtype -> number, from the file of the wheel.

    The file registers what it defines; here that is noted. What it imports of torch_npu is
    stood in for.

    Raises:
        ValueError: the file has not the functions that it should have.
    """
    found: dict[str, Callable[..., Any]] = {}

    def impl(library: str, name: str, *_: Any) -> Callable[..., Any]:
        def note(function: Callable[..., Any]) -> Callable[..., Any]:
            if library == "npu":
                found[name] = function
            return function

        return note

    numbers = {"int4": 285, "hifloat8": 290, "float8_e8m0fnu": 293}
    numbers |= {"float8_e5m2": 291, "float8_e4m3fn": 292}
    numbers |= {"float4_e2m1fn_x2": 296, "float4_e1m2fn_x2": 297}
    codes = SimpleNamespace(VALUE="", TYPE="", PARAM="", NOT_SUPPORT="")
    stubs = [
        _Stub("torch.library", Library=lambda name, *_: name, impl=impl),
        _Stub("torch_npu", **numbers),
        _Stub("torch_npu.utils._error_code", ErrCode=codes, ops_error=lambda *_: ""),
        _Stub("torch_npu.npu.utils", get_cann_version=lambda *_, **__: "9.1.0"),
        _Stub("torch_npu.npu._backends", get_soc_version=lambda: CHIP),
    ]
    tree = ast.parse(text)
    # Calls that stand alone say something of operators to PyTorch, which does not know them here.
    tree.body = [node for node in tree.body if not isinstance(node, ast.Expr)]
    defined: dict[str, Any] = {"__name__": FUNCTIONS}
    with mock.patch.dict(sys.modules, {stub.__name__: stub for stub in stubs}):
        exec(compile(tree, FUNCTIONS, "exec"), defined)
    if len(found) < FEWEST:
        raise ValueError(f"{FUNCTIONS} has {len(found)} functions; over {FEWEST} are expected")
    dtypes: dict[int, torch.dtype] = defined[DTYPES]
    return found, {dtype: number for number, dtype in reversed(dtypes.items())}


def without_data(value: Any, numbers: Mapping[torch.dtype, int]) -> Any:
    """An argument as a shape function is given it: on the meta device, a dtype by its number."""
    if isinstance(value, torch.Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return type(value)(without_data(one, numbers) for one in value)
    return numbers.get(value, value) if isinstance(value, torch.dtype) else value


def shape_of(value: Any) -> Shape:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.dtype
    return tuple(map(shape_of, value)) if isinstance(value, (list, tuple)) else value


def compared(ours: Shape, real: Shape, left_out: tuple[int, ...]) -> bool:
    """Whether all results are alike but those at the places that are left out."""
    if not left_out:
        return bool(ours == real)
    pairs = enumerate(zip(ours, real, strict=True))
    return all(mine == theirs for place, (mine, theirs) in pairs if place not in left_out)


class Comparison:
    """What the calls of one process showed."""

    def __init__(self, wheel: Path) -> None:
        with zipfile.ZipFile(wheel) as archive:
            text = archive.read(FUNCTIONS).decode("utf-8")
        self.functions, self.numbers = shape_functions(text)
        self.by_number = operator_schemas.arguments_by_number(wheel)
        self.calls: dict[str, int] = {}
        self.unlike: dict[str, str] = {}

    def watch(self) -> None:
        """Have each emulated operator compared that has a shape function."""
        from emulated_npu.operators import registry

        registry.load_all()
        for entry in registry.OPERATORS.values():
            real = self.functions.get(entry.name)
            if entry.namespace == operator_schemas.TORCH_NPU and not entry.overload and real:
                assert entry.function is not None
                entry.function.kernel = self.watched(entry.name, entry.function.kernel, real)

    def watched(
        self, name: str, kernel: Callable[..., Any], real: Callable[..., Any]
    ) -> Callable[..., Any]:
        """The kernel of an operator, whose results are compared with its shape function's."""
        places = [*inspect.signature(kernel).parameters]

        @functools.wraps(kernel)
        def run(*given: Any, **named: Any) -> Any:
            meta = [self._meta(name, *pair) for pair in zip(places, given, strict=False)]
            meta_named = {key: self._meta(name, key, one) for key, one in named.items()}
            result = kernel(*given, **named)
            self.calls[name] = self.calls.get(name, 0) + 1
            ours = shape_of(result)
            left_out, _ = UNLIKE.get(name, ((), ""))
            try:
                wanted = shape_of(real(*meta, **meta_named))
                alike = compared(ours, wanted, left_out)
            except Exception as error:  # it refuses arguments by whatever it likes
                wanted, alike = f"{type(error).__name__}: {error}"[:300], False
            if not alike:
                arguments = shape_of([*given, *named.items()])
                self.unlike.setdefault(name, f"{arguments}\n  ours: {ours}\n  real: {wanted}")
            return result

        return run

    def _meta(self, operator: str, argument: str, value: Any) -> Any:
        by_number = argument in self.by_number.get(operator, ())
        return without_data(value, self.numbers if by_number else {})

    def lines(self) -> Iterator[str]:
        for name, told in self.unlike.items():
            yield f"{name}: {told}"
        calls = sum(self.calls.values())
        yield f"{len(self.calls)} operators, {calls} calls, {len(self.unlike)} operators unlike"


class Plugin:
    """For pytest: compares while the tests run; unlike results fail the run."""

    def __init__(self, comparison: Comparison) -> None:
        self.comparison = comparison

    def pytest_sessionfinish(self, session: Any) -> None:
        if self.comparison.unlike:
            session.exitstatus = 1

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for line in self.comparison.lines():
            terminalreporter.write_line(line)


def pytest_configure(config: Any) -> None:
    """Where pytest is run with ``-p operator_shapes``."""
    comparison = Comparison(Path(os.environ[WHEEL]))
    comparison.watch()
    config.pluginmanager.register(Plugin(comparison))


def main() -> int:
    """Exit status 1 where something is unlike or a test fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    operator_schemas.add_arguments(parser)
    options = parser.parse_args()
    wheel = operator_schemas.wheel_of(options)
    if wheel is None:
        return 0 if options.if_served else 1
    command = [sys.executable, "-m", "pytest", "-q", "-n0", "-p", "operator_shapes", TESTS]
    paths = os.pathsep.join([str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, WHEEL: str(wheel), "PYTHONPATH": paths.rstrip(os.pathsep)}
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
