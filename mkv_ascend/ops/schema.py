# SPDX-License-Identifier: Apache-2.0
"""Schemas of ops, from the annotations of what takes their arguments: a function or named tuple."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from string import ascii_lowercase
from types import NoneType
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import torch

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


def named_tensors(arguments: Any) -> list[tuple[str, torch.Tensor]]:
    """Every tensor among the arguments of a named tuple, those in lists too, with its name."""
    found: list[tuple[str, torch.Tensor]] = []
    for name, value in arguments._asdict().items():
        if isinstance(value, torch.Tensor):
            found.append((name, value))
        elif isinstance(value, list | tuple):
            found += [(f"{name}[{index}]", tensor) for index, tensor in enumerate(value)]
    return found
