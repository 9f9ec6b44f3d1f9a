# SPDX-License-Identifier: Apache-2.0
"""Subclasses of foreign classes, made where the base is only known when it is needed."""

from __future__ import annotations

import types
from typing import Any


def derive(base: type[Any], label: str, members: dict[str, Any]) -> type[Any]:
    """A subclass of ``base`` with these members.

    Args:
        label: what tells it from other subclasses of ``base``, for instance ``[draft]``.
    """
    name = f"Mkv{base.__name__}{label}"
    namespace = {**members, "__module__": __name__, "__qualname__": name}
    return types.new_class(name, (base,), exec_body=lambda body: body.update(namespace))
