# SPDX-License-Identifier: Apache-2.0
"""Tiny models of the family Qwen3-VL: a trained Qwen3 that also sees pictures.

Of each picture the vision tower hands on what its first layer says, besides, and the language part
adds that behind its own first layer. Positions on three axes take turns in a rotation.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from tests.support.models import pictured_model
from tests.support.models.pictured_model import MERGE, ROPE
from tests.support.tiny_models import model_directory

TEXT_MODEL, HEAD = "qwen3", "qwen3_eagle3"
"""The tiny model whose layers are the language part, and the head on it."""
SECTION, SECTION_OF_HEAD = [12, 10, 10], [24, 20, 20]
"""Pairs of a rotation that follow time, rows and columns: of 32, and of the head's 64."""
TOWER = {
    "depth": 2,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_heads": 2,
    "out_hidden_size": 128,
    "num_position_embeddings": 16,
    "deepstack_visual_indexes": [0],
    "patch_size": 16,
    "spatial_merge_size": MERGE,
}


def text_part() -> Any:
    """The trained text model."""
    from transformers import Qwen3ForCausalLM

    return Qwen3ForCausalLM.from_pretrained(
        model_directory(TEXT_MODEL), dtype=torch.float32, local_files_only=True
    )


def rope(section: list[int]) -> dict[str, Any]:
    """Parameters of a rotation whose axes take turns."""
    return {**ROPE, "mrope_section": section, "mrope_interleaved": True}


def write_draft(folder: Path) -> Path:
    """The text model alone: a draft that sees the placeholders and no picture."""
    text_part().save_pretrained(folder)
    pictured_model.write_tokenizer(folder)
    return folder


def write_head(folder: Path) -> Path:
    """The head of method eagle3, rotated by positions on three axes as its target is."""
    shutil.copytree(model_directory(HEAD), folder, dirs_exist_ok=True)
    pictured_model.write_config(folder, rope_parameters=rope(SECTION_OF_HEAD))
    return folder


def write_target(folder: Path) -> Path:
    """A Qwen3-VL around the text model, with what its processor reads."""
    return pictured_model.write_around(text_part(), folder, "Qwen3VL", rope(SECTION), TOWER)
