# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of drafts that are wrong on purpose: the target's tokens must not care."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def _nan(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return weight.fill_(float("nan"))


def _infinite(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return weight.fill_(float("inf"))


def _random(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return weight.normal_(0.0, 0.5, generator=generator)


SPOILED: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "nan": _nan,
    "infinite": _infinite,
    "random": _random,
}
"""How: every weight NaN, as of a broken download; infinite; or of another model."""


def spoiled(checkpoint: Path, how: str, folder: Path) -> Path:
    """A copy of a checkpoint in ``folder`` with each weight spoiled."""
    import torch
    from safetensors.torch import load_file, save_file

    copy = folder / f"{checkpoint.name}-{how}"
    shutil.copytree(checkpoint, copy, dirs_exist_ok=True)
    generator = torch.Generator().manual_seed(1)
    for path in sorted(copy.glob("*.safetensors")):
        tensors = load_file(path)
        for name, weight in tensors.items():
            if weight.is_floating_point():
                tensors[name] = SPOILED[how](weight, generator)
        save_file(tensors, path, metadata={"format": "pt"})
    return copy
