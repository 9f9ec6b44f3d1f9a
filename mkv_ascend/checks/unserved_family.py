# SPDX-License-Identifier: Apache-2.0
"""A family of models that a host has classes for and does not serve, or serves wrongly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["UnservedFamily", "unserved"]


@dataclass(frozen=True)
class UnservedFamily:
    """What an adapter knows of a family.

    ``classes``: names in ``architectures`` of config.json, of which a model has no other one.
    ``why``: what the host does with it, to be read behind "MODEL is "; ``{dtype}`` stands for the
    model's. ``possible``, ``change``: as of a ``Refusal``. ``dtypes``: those in which it is served.
    """

    classes: frozenset[str]
    why: str
    possible: str
    change: str
    dtypes: frozenset[str] = frozenset()

    def reason(self, model: str, dtype: str) -> str:
        """Why the model of this name is not served."""
        return f"{model} is {self.why.format(dtype=dtype)}"


def unserved(
    families: Iterable[UnservedFamily], architectures: Iterable[str], dtype: str
) -> UnservedFamily | None:
    """The family of a model that is not served; None where it is.

    ``architectures``: of its config.json. ``dtype``: that it runs in.
    """
    names = frozenset(architectures)
    return next(
        (
            family
            for family in families
            if names and names <= family.classes and dtype not in family.dtypes
        ),
        None,
    )
