# SPDX-License-Identifier: Apache-2.0
"""Defines ``torch.ops.mkv_ascend.*``: schema, fake kernel and kernels, once per process.

Every op writes into tensors of the caller and returns nothing, so that it can be captured into a
graph: no op allocates, synchronises or reads device memory on the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mkv_ascend import envs
from mkv_ascend.ops import implementations, value_checks

NAMESPACE = "mkv_ascend"


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
    """

    name: str
    arguments: str
    check: Callable[..., None]
    reference: Callable[..., None]

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
    """A kernel for CPU tensors behind the checks of values; see ``value_checks``."""
    kernel: Callable[..., None] = (
        checked_reference(op)
        if implementation == implementations.REFERENCE
        else implementations.kernel_of(implementation, op.name)
    )

    def checked(*arguments: Any) -> None:
        op.check(*arguments)
        value_checks.CHECKS[op.name](*arguments)
        kernel(*arguments)

    return checked


def checked_reference(op: CustomOp) -> Callable[..., None]:
    """The reference as a kernel: after the checks, and without autograd."""

    def kernel(*arguments: Any) -> None:
        op.check(*arguments)
        with torch.no_grad():
            op.reference(*arguments)

    return kernel
