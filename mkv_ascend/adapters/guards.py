# SPDX-License-Identifier: Apache-2.0
"""Guards of patches: foreign code is replaced only while it still looks as it did."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from mkv_ascend.adapters.refusal import StartUpRefused


class PatchRefused(StartUpRefused):
    """The foreign code does not look as the patch expects, so nothing was changed."""


def expect(condition: bool, patch: str, what: str) -> None:
    """A patch's guard.

    Raises:
        PatchRefused: naming the patch and what is no longer as it was.
    """
    if not condition:
        raise PatchRefused(
            f"patch {patch!r} no longer fits: {what}. The installed vLLM or vllm-ascend is not "
            "the one this release was tested with; reinstall both, or report this."
        )


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Replace one attribute of a module or class while the block runs.

    Raises:
        PatchRefused: there is no such attribute to replace.
    """
    expect(hasattr(owner, name), name, f"{getattr(owner, '__name__', owner)} has no {name}")
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
