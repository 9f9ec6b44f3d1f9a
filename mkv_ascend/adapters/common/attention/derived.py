# SPDX-License-Identifier: Apache-2.0
"""Subclasses of foreign classes, made where the base is only known when it is needed."""

from __future__ import annotations

import types
from typing import Any

from mkv_ascend.adapters.patching import Record


def derive(base: type[Any], label: str, members: dict[str, Any], *records: Record) -> type[Any]:
    """A subclass of ``base`` with these members.

    Args:
        label: what tells it from other subclasses of ``base``, for instance ``[draft]``.
        records: name each member among their targets.

    Raises:
        TypeError: ``base`` has no such member, so that nothing would be replaced, or no record
            names it.
    """
    named = {target.rpartition(".")[2] for record in records for target in record.targets}
    if not named >= set(members):
        names = ", ".join(repr(record.name) for record in records)
        raise TypeError(f"no record of {names} names {set(members) - named}")
    missing = sorted(name for name in members if not hasattr(base, name))
    if missing:
        raise TypeError(
            f"{base.__module__}.{base.__qualname__} has no {', '.join(missing)} to replace; the "
            "installed vllm-ascend is not the one this release was tested with"
        )
    name = f"Mkv{base.__name__}{label}"
    namespace = {**members, "__module__": __name__, "__qualname__": name}
    return types.new_class(name, (base,), exec_body=lambda body: body.update(namespace))


def underived(made: type[Any]) -> type[Any]:
    """The class that ``derive`` was given for ``made``, or ``made`` itself: the host's own."""
    return next(one for one in made.__mro__ if one.__module__ != __name__)


def stock(instance: Any) -> Any:
    """The host's own members of ``instance``, whose class ``derive`` made."""
    return super(type(instance), instance)
