# SPDX-License-Identifier: Apache-2.0
"""Draft models that draft all tokens at once, behind mask tokens (`parallel_drafting`).

None was trained for it, so few of their tokens are accepted; each is their own all the same.
"""

from __future__ import annotations

import atexit
import functools
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.support import reference
from tests.support.pairs import with_config

if TYPE_CHECKING:
    import torch

MASK = 5
"""Token that stands for one that is not drafted yet."""


@functools.cache
def folder_with_mask(draft: str) -> str:
    """The tiny model ``draft`` in a folder whose config.json names the mask token."""
    folder = tempfile.mkdtemp(prefix="mkv_ascend_parallel_")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return with_config(draft, Path(folder), pard_token=MASK)


@dataclass(frozen=True)
class ParallelDraft:
    """A ``Drafter``: what the model in ``checkpoint`` says behind a context and mask tokens."""

    checkpoint: Path

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """See ``Drafter``."""
        known = [*context, *[MASK] * len(drafted)]
        return reference.logits_of(self.checkpoint, known)[len(context) - 1 :]
