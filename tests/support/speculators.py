# SPDX-License-Identifier: Apache-2.0
"""Tiny heads as checkpoints in the format of the library speculators, which names the target."""

from __future__ import annotations

import json
from pathlib import Path

from transformers import AutoConfig

from tests.support.tiny_models import model_directory

OWN = ("architectures", "dtype", "eagle_aux_hidden_state_layer_ids")
"""What stands beside the numbers of the head's layers."""


def write_head(name: str, target: str, directory: Path, tokens: int) -> Path:
    """The eagle3 head ``name`` for the tiny model ``target``, drafting ``tokens`` at once."""
    source = model_directory(name)
    for file in source.iterdir():
        if file.name != "config.json":
            (directory / file.name).symlink_to(file)
    # Published files hold all numbers: vLLM has no defaults of the class for them.
    numbers = AutoConfig.from_pretrained(source).to_dict()
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": numbers["vocab_size"],
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": numbers["eagle_aux_hidden_state_layer_ids"],
        "torch_dtype": numbers["dtype"],
        "speculators_config": {
            "algorithm": "eagle3",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
            "verifier": {"name_or_path": str(model_directory(target))},
        },
        "transformer_layer_config": {x: numbers[x] for x in numbers if x not in OWN},
    }
    (directory / "config.json").write_text(json.dumps(config))
    return directory
