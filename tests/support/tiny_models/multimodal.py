# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of families whose text model vLLM knows only inside one that sees images too.

The text model is trained alone. It is saved as published checkpoints are: inside, with a vision
tower, here a tiny one of random weights. transformers finds the text model in it again; vLLM leaves
the tower out with ``language_model_only``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEXT_TYPES = {"qwen3_5_text": "Qwen3_5", "qwen3_5_moe_text": "Qwen3_5Moe"}
"""Model types of such text models -> how transformers' classes of the whole models begin."""

WEIGHTS_FILE = "model.safetensors"


def save(model: Any, path: Path) -> None:
    """Write the checkpoint around the text model ``model`` (Qwen3.5) into the folder ``path``."""
    import torch
    import transformers
    from safetensors.torch import load_file, save_file

    family = TEXT_TYPES[model.config.model_type]
    width = model.config.hidden_size
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
    config = getattr(transformers, f"{family}Config")(
        text_config=model.config.to_dict(),
        vision_config={**vision, "out_hidden_size": width, "num_position_embeddings": 16},
    )
    torch.manual_seed(0)
    whole = getattr(transformers, f"{family}ForConditionalGeneration")(config)
    whole.model.language_model.load_state_dict(model.model.state_dict())
    whole.lm_head.load_state_dict(model.lm_head.state_dict())
    whole.generation_config = model.generation_config
    whole.save_pretrained(path)
    # transformers 5.5.4 saves the tower as part of the text model, where nobody looks for it.
    weights = load_file(path / WEIGHTS_FILE)
    save_file(
        {
            name.replace("model.language_model.visual.", "model.visual."): value
            for name, value in weights.items()
        },
        path / WEIGHTS_FILE,
        metadata={"format": "pt"},
    )
