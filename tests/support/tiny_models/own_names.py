# SPDX-License-Identifier: Apache-2.0
"""Families of which transformers has no class, saved and loaded by names of their checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

WEIGHTS_FILE = "model.safetensors"


class OwnNames:
    """For classes of language models. ``published`` gives views, through which weights are read."""

    def published(self) -> dict[str, torch.Tensor]:
        """The weights by the names that vLLM loads; they share the model's memory."""
        raise NotImplementedError

    def save_pretrained(self, path: Any, *arguments: Any, **named: Any) -> None:
        """Write configuration and weights."""
        super().save_pretrained(path, *arguments, **named)  # type: ignore[misc]
        weights = {name: value.clone() for name, value in self.published().items()}
        save_file(weights, Path(path) / WEIGHTS_FILE, metadata={"format": "pt"})

    @classmethod
    def from_pretrained(cls, path: Any, *_: Any, **named: Any) -> Any:
        """The checkpoint in ``path``, in float32 with eager attention."""
        config_class: Any = cls.config_class  # type: ignore[attr-defined]
        config = config_class.from_pretrained(path, attn_implementation="eager")
        model: Any = cls(config).to(torch.float32)  # type: ignore[call-arg, attr-defined]
        found = load_file(Path(path) / WEIGHTS_FILE)
        missing = [name for name in model.published() if name not in found]
        for name, value in model.published().items():
            if name in found:
                value.copy_(found[name])
        info = {"missing_keys": missing}
        return (model, info) if named.get("output_loading_info") else model
