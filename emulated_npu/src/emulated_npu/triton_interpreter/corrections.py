# SPDX-License-Identifier: Apache-2.0
"""What Triton 3.4.0's interpreter does wrong, and what it does more often than it needs.

- A comparison keeps the type of its operands. A later conversion to that type, as a scalar gets
  where it becomes a block, makes numbers of the truth values: ``mask & (x != 0.0)`` fails. Here the
  type is that of a truth value.
- At each call of a kernel or of a library function (``tl.sum``, ``tl.rand``) it looks for parts of
  the language that it has not patched yet, which takes 5 ms. It never takes its patches back, so
  here it looks once for the functions of each module.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

import numpy as np


def install(interpreter: ModuleType) -> None:
    """Correct ``triton.runtime.interpreter``."""
    _type_comparisons(interpreter)
    _patch_language_once(interpreter)


def _type_comparisons(interpreter: ModuleType) -> None:
    import triton.language as tl

    operate = interpreter.InterpreterBuilder.binary_op

    @functools.wraps(operate)
    def binary_op(self: Any, left: Any, right: Any, operation: Any) -> Any:
        result = operate(self, left, right, operation)
        if result.data.dtype == np.bool_:
            result.dtype = tl.int1
        return result

    interpreter.InterpreterBuilder.binary_op = binary_op


def _patch_language_once(interpreter: ModuleType) -> None:
    patch = interpreter._patch_lang
    patched: set[str] = set()

    @functools.wraps(patch)
    def patch_lang(function: Any) -> None:
        if function.__module__ not in patched:
            patch(function)
            patched.add(function.__module__)

    interpreter._patch_lang = patch_lang  # type: ignore[attr-defined]
