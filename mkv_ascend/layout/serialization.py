# SPDX-License-Identifier: Apache-2.0
"""Frozen dataclasses to plain JSON values and back, by their annotations."""

from __future__ import annotations

import types
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from mkv_ascend.layout.component import LayoutError

__all__ = ["from_plain", "to_plain"]

Value = TypeVar("Value")


def to_plain(value: object) -> Any:
    """Dictionaries, lists, strings, numbers, booleans and None."""
    if is_dataclass(value):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise TypeError(f"{type(value).__name__} has no place in a plan")


def from_plain(kind: type[Value], plain: object) -> Value:
    """A value of ``kind`` from what ``to_plain`` made of it; LayoutError says what does not fit."""
    value: Value = _read(kind, plain)
    return value


@cache
def _annotations(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _read(kind: Any, plain: object) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return _read_union(get_args(kind), plain)
    if origin is tuple:
        return _read_tuple(get_args(kind), plain)
    if is_dataclass(kind):
        return _read_dataclass(kind, plain)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(plain)
    # bool is an int, and True is no number of bytes.
    if type(plain) is not kind:
        raise LayoutError(f"{plain!r} where a {getattr(kind, '__name__', kind)} belongs")
    return plain


def _read_tuple(arguments: tuple[Any, ...], plain: object) -> tuple[Any, ...]:
    if not isinstance(plain, list):
        raise LayoutError(f"{plain!r} where a list belongs")
    if len(arguments) == 2 and arguments[1] is Ellipsis:
        return tuple(_read(arguments[0], item) for item in plain)
    if len(arguments) != len(plain):
        raise LayoutError(f"{plain!r} where {len(arguments)} items belong")
    return tuple(_read(argument, item) for argument, item in zip(arguments, plain, strict=True))


def _read_union(kinds: tuple[Any, ...], plain: object) -> Any:
    """The one member that fits; dataclasses are told apart by their fields."""
    if plain is None and type(None) in kinds:
        return None
    for kind in kinds:
        if is_dataclass(kind):
            names = {field.name for field in fields(kind)}
            if isinstance(plain, dict) and plain.keys() <= names:
                return _read(kind, plain)
        elif kind is not type(None):
            return _read(kind, plain)
    raise LayoutError(f"{plain!r} fits none of {kinds}")


def _read_dataclass(kind: Any, plain: object) -> Any:
    if not isinstance(plain, dict):
        raise LayoutError(f"{plain!r} where a {kind.__name__} belongs")
    names = {field.name: field for field in fields(kind)}
    unknown = sorted(plain.keys() - names.keys())
    required = {name for name, field in names.items() if field.default is MISSING}
    missing = sorted(required - plain.keys())
    if unknown or missing:
        raise LayoutError(f"{kind.__name__}: unknown fields {unknown}, missing fields {missing}")
    hints = _annotations(kind)
    return kind(**{name: _read(hints[name], item) for name, item in plain.items()})
