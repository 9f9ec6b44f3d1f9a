# SPDX-License-Identifier: Apache-2.0
"""How a check gets the arguments of a call: by the names that it lists, bound by the kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

ALL = "given"
"""The parameter of a check that reads so much that naming it would repeat the kernel's list."""


class Arguments(SimpleNamespace):
    """All arguments of one call, by the names of the kernel's parameters, defaults filled in."""


def bound_by(kernel: Callable[..., Any], check: Callable[..., None]) -> Callable[..., None]:
    """``check`` for the arguments that ``kernel`` takes.

    A check lists the kernel's parameters that it reads, or only ``given: Arguments``. Defaults are
    the kernel's. Raises ValueError where it names what the kernel has not; the function that is
    returned raises TypeError for arguments that the kernel does not take.
    """
    signature = inspect.signature(kernel)
    names = list(inspect.signature(check).parameters)
    unknown = [] if names == [ALL] else [name for name in names if name not in signature.parameters]
    if unknown:
        raise ValueError(
            f"{check.__qualname__} reads {', '.join(unknown)}; {kernel.__qualname__} has "
            f"{', '.join(signature.parameters)}. Name parameters of the kernel"
        )

    def run(*args: Any, **kwargs: Any) -> None:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        if names == [ALL]:
            check(Arguments(**bound.arguments))
        else:
            check(**{name: bound.arguments[name] for name in names})

    return run
