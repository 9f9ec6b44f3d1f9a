# SPDX-License-Identifier: Apache-2.0
"""vLLM's ``EngineArgs`` in plain values, as checks read them; vLLM is not imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any

__all__ = ["asked_of"]

WITH_GRAPHS = "compilation_config"
OF_GRAPHS = ("mode", "cudagraph_mode", "cudagraph_capture_sizes", "max_cudagraph_capture_size")
"""What checks read of it."""


def asked_of(arguments: Any) -> dict[str, Any]:
    """What of ``EngineArgs`` is not vLLM's default, in plain values."""
    asked: dict[str, Any] = {"model": arguments.model}
    for field in dataclasses.fields(arguments):
        value = getattr(arguments, field.name)
        if value is None or value == _default(field):
            continue
        plain = _plain(field.name, value)
        if plain is not None:
            asked[field.name] = plain
    backend = getattr(getattr(arguments, "attention_config", None), "backend", None)
    if backend is not None:
        asked.setdefault("attention_backend", backend.name)
    return asked


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def _plain(name: str, value: Any) -> Any:
    """As the command line has it; None for objects that no check reads."""
    if isinstance(value, Enum):
        return value.name
    if name == WITH_GRAPHS and not isinstance(value, Mapping):
        return _of_graphs(value) or None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            if isinstance(getattr(value, field.name), str | int | float | dict | list)
        }
    if isinstance(value, Mapping):
        return dict(value)
    return value if isinstance(value, str | int | float | list | tuple) else None


def _of_graphs(compilation: Any) -> dict[str, Any]:
    given = {name: getattr(compilation, name, None) for name in OF_GRAPHS}
    return {name: getattr(x, "name", x) for name, x in given.items() if x is not None}
