# SPDX-License-Identifier: Apache-2.0
"""Drafts that attend to their last tokens alone, by a mask in plain torch over transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.support import reference, speculation
from tests.support.tiny_models.sensitivity import attention_modules


@dataclass(frozen=True)
class WindowedDraft:
    """``drafter`` whose layers attend to ``window`` tokens, themselves included.

    A layer that has a smaller window of its own keeps it.
    """

    drafter: speculation.Drafter
    window: int

    @property
    def checkpoint(self) -> Path:
        """Folder of the weights."""
        return self.drafter.checkpoint

    @property
    def question(self) -> dict[str, int]:
        """What makes its answers others than those of its checkpoint."""
        return {"window": self.window}

    def rows(self, context: Sequence[int], drafted: Sequence[int]) -> torch.Tensor:
        """The draft's logits after the context and after each token drafted since."""
        with windowed(self._module(), self.window):
            return self.drafter.rows(context, drafted)

    def _module(self) -> torch.nn.Module:
        if isinstance(self.drafter, speculation.DraftHead):
            return speculation.load_head(self.drafter.checkpoint, self.drafter.target)
        if not isinstance(self.drafter, speculation.DraftModel):
            raise ValueError(f"{type(self.drafter).__name__} has no layers with a causal mask")
        model: torch.nn.Module = reference.load_model(self.drafter.checkpoint)
        return model


@contextmanager
def windowed(model: torch.nn.Module, window: int) -> Iterator[None]:
    """Take the keys ``window`` tokens and more before a query out of the mask of every layer."""

    def narrow(module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        # Eager attention always gets an additive mask.
        mask = keywords["attention_mask"]
        before = torch.ones(mask.shape[-2:], dtype=torch.bool).tril(-window)
        keywords["attention_mask"] = mask.masked_fill(before, float("-inf"))
        return arguments, keywords

    with ExitStack() as stack:
        for module in attention_modules(model):
            stack.enter_context(module.register_forward_pre_hook(narrow, with_kwargs=True))
        yield
