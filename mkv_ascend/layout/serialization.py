# SPDX-License-Identifier: Apache-2.0
"""Frozen dataclasses to plain JSON values and back, by their annotations.

pydantic does it, which vLLM brings: only processes that ask vLLM need these functions.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

Value = TypeVar("Value")


def to_dict(value: object) -> Any:
    """Dictionaries, lists, strings, numbers, booleans and None."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(value)


def from_dict(kind: type[Value], plain: object) -> Value:
    """A value of ``kind`` from what ``to_dict`` made of it; ValueError says what does not fit."""
    adapter: Callable[[Any], Any] = _adapter
    value: Value = adapter(kind).validate_python(plain)
    return value


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)
