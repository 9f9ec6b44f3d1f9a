# SPDX-License-Identifier: Apache-2.0
"""Families of which transformers has no class, saved and loaded by names of their checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from tests.support.tiny_models.heads import MTP_HEADS, Head

WEIGHTS_FILE = "model.safetensors"


CODE = """# SPDX-License-Identifier: Apache-2.0
\"\"\"The configuration of {family}: whatever config.json holds.\"\"\"

from transformers import PretrainedConfig


class {name}(PretrainedConfig):
    \"\"\"Sizes are attributes by their names in config.json.\"\"\"

    model_type = "{model_type}"
"""
"""What checkpoints bring along for a configuration that no package knows."""


def write_code(folder: Path, module: str, **named: str) -> dict[str, Any]:
    """Write ``CODE`` into ``folder``; the field of config.json that says where it is."""
    (folder / f"{module}.py").write_text(CODE.format(**named))
    return {"auto_map": {"AutoConfig": f"{module}.{named['name']}"}}


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


def register(model: Any, head: type[Head] | None = None) -> None:
    """Let transformers' Auto classes give ``model``, and its drafting ``head`` be built."""
    config = model.config_class
    AutoConfig.register(config.model_type, config, exist_ok=True)
    AutoModelForCausalLM.register(config, model, exist_ok=True)
    if head is not None:
        MTP_HEADS[config.model_type] = head
