# SPDX-License-Identifier: Apache-2.0
"""Defines ``torch.ops.mkv_ascend.*``: schema, fake kernel and kernels, once per process.

A schema is made from the annotations of what takes the arguments: a function or named tuple.

Every op writes into tensors of the caller and returns nothing, so that it can be captured into a
graph: no op allocates, synchronises or reads device memory on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from string import ascii_lowercase
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import torch

from mkv_ascend import envs
from mkv_ascend.ops import implementations

NAMESPACE = "mkv_ascend"


WRITTEN = "written"
Written = Annotated[torch.Tensor, WRITTEN]
"""A tensor that the op writes."""


def arguments_of(described: Callable[..., Any]) -> str:
    """The argument list of a schema, as ``torch.library`` takes it.

    Without defaults: PyTorch keeps arguments that equal one from kernels in Python.

    Raises:
        TypeError: an annotation that no schema has.
    """
    hints = get_type_hints(described, include_extras=True)
    letters = iter(ascii_lowercase)
    return ", ".join(
        f"{_type_of(name, hint, letters)} {name}"
        for name, hint in hints.items()
        if name != "return"
    )


def _type_of(name: str, hint: Any, letters: Iterator[str]) -> str:
    if hint is int or hint is bool:
        return str(hint.__name__)
    if hint is torch.Tensor:
        return "Tensor"
    if get_origin(hint) is Annotated and WRITTEN in hint.__metadata__:
        # Each written argument is memory of its own.
        return f"Tensor({next(letters)}!)"
    inner = get_args(hint)
    if get_origin(hint) in (list, Sequence) and len(inner) == 1:
        return f"{_type_of(name, inner[0], letters)}[]"
    if len(inner) == 2 and inner[1] is NoneType:
        return f"{_type_of(name, inner[0], letters)}?"
    raise TypeError(f"{name} is annotated as {hint}; a schema has tensors, int and bool")


@dataclass(frozen=True)
class CustomOp:
    """One op.

    Attributes:
        name: without the namespace.
        arguments: the argument list of the schema, mutation marked; all ops return nothing.
        check: takes the op's arguments and raises ValueError, naming the argument, for shapes,
            dtypes, strides and devices that it does not take. Looks at no values: it also is the
            fake kernel, run on tensors without memory.
        reference: the op in plain torch operations, on tensors of any device, without reading
            values on the host.
        check_values: raises ValueError for values that the op would take for something else, or
            skip; reads them all, on the CPU.
    """

    name: str
    arguments: str
    check: Callable[..., None]
    reference: Callable[..., None]
    check_values: Callable[..., None]

    @property
    def schema(self) -> str:
        """The definition as ``torch.library`` takes it."""
        return f"{self.name}({self.arguments}) -> ()"

    @property
    def qualified_name(self) -> str:
        """The name as ``torch.ops`` and the launch counters have it."""
        return f"{NAMESPACE}::{self.name}"


OPS: dict[str, CustomOp] = {}
"""The ops registered so far, by name."""

_libraries: list[torch.library.Library] = []
"""Kept for the life of the process: torch forgets the ops when their Library goes."""


def register(op: CustomOp) -> Any:
    """Define an op and give it its kernels; returns the callable ``torch.ops.mkv_ascend.<name>``.

    Raises:
        ValueError: an op of that name is registered.
    """
    if op.name in OPS:
        raise ValueError(f"{op.qualified_name} is registered already")
    library = torch.library.Library(NAMESPACE, "FRAGMENT")
    library.define(op.schema)
    choice = implementations.for_cpu().implementation
    if envs.OPS_CHECKS.get():
        library.impl(op.name, value_checked(op, choice), "CPU")
    elif choice == implementations.REFERENCE:
        library.impl(op.name, checked_reference(op), "CPU")
    else:
        implementations.install(choice, op.name)
    on_npu = implementations.for_npu()
    if on_npu is not None and on_npu.implementation == implementations.ON_NPU:
        implementations.install(implementations.ON_NPU, op.name)
    elif on_npu is not None:
        library.impl(op.name, checked_reference(op), "PrivateUse1")
    torch.library.register_fake(op.qualified_name, op.check, lib=library)
    _libraries.append(library)
    OPS[op.name] = op
    return getattr(getattr(torch.ops, NAMESPACE), op.name).default


def value_checked(op: CustomOp, implementation: str) -> Callable[..., None]:
    """A kernel for CPU tensors behind the checks of values."""
    kernel: Callable[..., None] = (
        checked_reference(op)
        if implementation == implementations.REFERENCE
        else implementations.kernel_of(implementation, op.name)
    )

    def checked(*arguments: Any) -> None:
        op.check(*arguments)
        op.check_values(*arguments)
        kernel(*arguments)

    return checked


def checked_reference(op: CustomOp) -> Callable[..., None]:
    """The reference as a kernel: after the checks, and without autograd."""

    def kernel(*arguments: Any) -> None:
        op.check(*arguments)
        with torch.no_grad():
            op.reference(*arguments)

    return kernel
