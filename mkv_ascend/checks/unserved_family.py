# SPDX-License-Identifier: Apache-2.0
"""A family of models that a host has classes for and does not serve, or serves wrongly."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["MINIMAX_M2_AS_DRAFT", "UnservedFamily", "unserved"]


@dataclass(frozen=True)
class UnservedFamily:
    """What an adapter knows of a family.

    ``classes``: names in ``architectures`` of config.json, of which a model has no other one.
    ``why``: what the host does with it, to be read behind "MODEL is "; ``{dtype}`` stands for the
    model's. ``possible``, ``change``: as of a ``Refusal``. ``dtypes``: those in which it is served.
    ``as_draft``: whether it is served as a target.
    """

    classes: frozenset[str]
    why: str
    possible: str
    change: str
    dtypes: frozenset[str] = frozenset()
    as_draft: bool = False

    def reason(self, model: str, dtype: str) -> str:
        """Why the model of this name is not served."""
        return f"{model} is {self.why.format(dtype=dtype)}"


MINIMAX_M2_AS_DRAFT = UnservedFamily(
    # worker/patch_minimax_m2.py takes them from globals of ops/rotary_embedding.py.
    frozenset({"MiniMaxM2ForCausalLM"}),
    "a MiniMax-M2: vllm-ascend rotates its queries and keys by cosines and sines of the target's "
    "positions, which it keeps once per process",
    "MiniMax-M2 as the target, and drafts of other families",
    "choose another draft",
    as_draft=True,
)


def unserved(
    families: Iterable[UnservedFamily],
    architectures: Iterable[str],
    dtype: str,
    *,
    drafts: bool = False,
) -> UnservedFamily | None:
    """The family of a model that is not served; None where it is.

    ``architectures``: of its config.json. ``dtype``: that it runs in. ``drafts``: whether it does.
    """
    names = frozenset(architectures)
    return next(
        (
            family
            for family in families
            if names
            and names <= family.classes
            and dtype not in family.dtypes
            and (drafts or not family.as_draft)
        ),
        None,
    )
