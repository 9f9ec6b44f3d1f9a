# SPDX-License-Identifier: Apache-2.0
"""A tiny Qwen3.5 that sees pictures, with its own layer of multi-token prediction.

The language part, with gated delta nets, was trained on text; the vision tower has random weights.
The layer of multi-token prediction was trained on text, too (``python -m
tests.support.models.pictured_hybrid`` does it anew). In vLLM it is given the embeddings of
pictures, and not those of placeholders.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from tests.support.models import pictured_model
from tests.support.models.pictured_model import IMAGE_TOKEN
from tests.support.tiny_models import model_directory, store
from tests.support.tiny_models.corpus import load_corpus
from tests.support.tiny_models.further_heads import QwenMtpHead
from tests.support.tiny_models.heads import proposal_loss
from tests.support.tiny_models.making import one_thread
from tests.support.tiny_models.recipe import Recipe
from tests.support.tiny_models.training import optimise

LANGUAGE_PART = "qwen3_5"
PATCH = 16
WEIGHTS = "model.safetensors"

TOWER = {
    "depth": 1,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_heads": 2,
    "out_hidden_size": 128,
    "num_position_embeddings": 16,
    "patch_size": PATCH,
    "spatial_merge_size": pictured_model.MERGE,
}

HEAD = "qwen3_5_pictured_mtp"
TRAINING = Recipe(name=HEAD, model_type="", architecture={}, steps=40)


class MtpHead(QwenMtpHead):
    """The layer beside pictures.

    ``pictures``: embeddings of a picture's parts [parts, width]; None: there is no picture.
    """

    pictures: torch.Tensor | None = None

    def __init__(self, target: Any) -> None:
        super().__init__(target)
        for parameter in self.parameters():
            if parameter.dim() >= 2:
                nn.init.normal_(parameter, std=0.02)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """See ``Head``; of pictures, what the vision tower says."""
        embedded = super().embed(tokens)
        if self.pictures is not None:
            embedded = embedded.clone()
            embedded[tokens == IMAGE_TOKEN] = self.pictures
        return embedded


def write(folder: Path) -> tuple[Path, MtpHead]:
    """The whole model with its drafting layer, and what its processor reads."""
    whole = _with_tower()
    whole.save_pretrained(folder)
    head = MtpHead(whole)
    head.load_weights(store.read_packed(HEAD)[0])
    head.eval()
    # transformers 5.5.4 saves the tower as part of the text model, where nobody looks for it.
    weights = {
        name.replace("model.language_model.visual.", "model.visual."): value
        for name, value in load_file(folder / WEIGHTS).items()
    }
    weights |= {name: value.clone() for name, value in head.weights().items()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    pictured_model.write_config(folder, mtp_num_hidden_layers=1)
    pictured_model.write_processor(folder, PATCH)
    return folder, head


def _with_tower() -> Any:
    """The trained language part, and a tower of random weights."""
    from transformers import AutoConfig, Qwen3_5ForConditionalGeneration

    folder = model_directory(LANGUAGE_PART)
    trained = Qwen3_5ForConditionalGeneration.from_pretrained(
        folder, dtype=torch.float32, local_files_only=True
    )
    config = AutoConfig.from_pretrained(folder, local_files_only=True)
    config.vision_config = type(config.vision_config)(**TOWER)
    for name, token in pictured_model.TOKENS.items():
        setattr(config, name, token)
    torch.manual_seed(1)
    whole = Qwen3_5ForConditionalGeneration._from_config(config, attn_implementation="eager")
    whole.model.language_model.load_state_dict(trained.model.language_model.state_dict())
    whole.lm_head.load_state_dict(trained.lm_head.state_dict())
    pictured_model.fill_tower(whole.model.visual)
    whole.generation_config = trained.generation_config
    return whole.eval()


def train() -> None:
    """Train the drafting layer anew, and put it in the place of its file."""
    head = MtpHead(_with_tower())
    torch.manual_seed(0)
    with one_thread():
        optimise(head, proposal_loss, TRAINING, load_corpus())
    store.write_packed(HEAD, {name: value.clone() for name, value in head.weights().items()})


if __name__ == "__main__":
    train()
