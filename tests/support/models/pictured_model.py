# SPDX-License-Identifier: Apache-2.0
"""Tiny models of the family Qwen2.5-VL: a trained text model that also sees pictures.

The language part is a tiny Qwen2 that was trained on text and decks, so it notices a missing key.
The vision tower has random weights: the language part has never learned what a picture means, but
what it says depends on each picture and on the places of its parts (M-RoPE).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tests.support.tiny_models import model_directory
from tests.support.tiny_models.tokenizer import build_tokenizer

TEXT_MODEL, HEAD = "mimo", "mimo_eagle3"
"""The tiny model whose Qwen2 layers are the language part, and the head on it."""

IMAGE_TOKEN, VIDEO_TOKEN, START_TOKEN, END_TOKEN = 259, 260, 261, 262
"""Ids of the placeholder of pictures, and of the tokens around it: unused ones of the tokenizer."""

TOKENS = {
    "image_token_id": IMAGE_TOKEN,
    "video_token_id": VIDEO_TOKEN,
    "vision_start_token_id": START_TOKEN,
    "vision_end_token_id": END_TOKEN,
}

NAMES = {
    "<unused0>": "<|image_pad|>",
    "<unused1>": "<|video_pad|>",
    "<unused2>": "<|vision_start|>",
    "<unused3>": "<|vision_end|>",
}

PATCH, MERGE = 14, 2
SECTION, SECTION_OF_HEAD = [8, 12, 12], [16, 24, 24]
"""Pairs of a rotation that follow time, rows and columns: of 32, and of the head's 64.

Heads of 128 are rotated by an operator of the NPU, others in torch.
"""

ROPE = {"rope_type": "default", "rope_theta": 10000.0}

TOWER = {
    "depth": 2,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_heads": 2,
    "out_hidden_size": 128,
    "patch_size": PATCH,
    "spatial_merge_size": MERGE,
    "fullatt_block_indexes": [1],
    "window_size": 56,
}


def text_part() -> Any:
    """The trained text model."""
    from transformers import Qwen2ForCausalLM

    return Qwen2ForCausalLM.from_pretrained(
        model_directory(TEXT_MODEL), dtype=torch.float32, local_files_only=True
    )


def write_draft(folder: Path) -> Path:
    """The text model alone: a draft that sees the placeholders and no picture."""
    text_part().save_pretrained(folder)
    write_config(folder, architectures=["Qwen2ForCausalLM"])
    write_tokenizer(folder)
    return folder


def write_head(folder: Path) -> Path:
    """The head of method eagle3, rotated by positions on three axes as its target is."""
    shutil.copytree(model_directory(HEAD), folder, dirs_exist_ok=True)
    write_config(folder, rope_parameters={**ROPE, "mrope_section": SECTION_OF_HEAD})
    return folder


def write_target(folder: Path) -> Path:
    """A Qwen2.5-VL around the text model, with what its processor reads."""
    rope = {**ROPE, "mrope_section": SECTION}
    return write_around(text_part(), folder, "Qwen2_5_VL", rope, TOWER)


def write_around(
    text: Any, folder: Path, family: str, rope: Mapping[str, Any], tower: Mapping[str, Any]
) -> Path:
    """A model that sees pictures, around the text model ``text``.

    Args:
        family: how transformers' classes of it begin.
        rope: parameters of the rotation, which has three axes.
        tower: sizes of the vision tower, whose weights are random.
    """
    import transformers

    values = text.config.to_dict()
    for name in ("architectures", "model_type", "transformers_version"):
        values.pop(name, None)
    torch.manual_seed(1)
    config = getattr(transformers, f"{family}Config")(
        text_config={**values, "rope_parameters": {**rope}},
        vision_config={**tower},
        **TOKENS,
        tie_word_embeddings=False,
    )
    whole = getattr(transformers, f"{family}ForConditionalGeneration")(config)
    whole.model.language_model.load_state_dict(text.model.state_dict())
    whole.lm_head.load_state_dict(text.lm_head.state_dict())
    fill_tower(whole.model.visual)
    whole.generation_config = text.generation_config
    whole.save_pretrained(folder)
    write_processor(folder, tower["patch_size"])
    return folder


def fill_tower(tower: Any) -> None:
    """Random weights: embeddings differ, and are some times as large as those of letters."""
    for name, parameter in tower.named_parameters():
        if parameter.dim() > 1:
            last = "merger" in name and any(part in name for part in ("mlp.2", "linear_fc2"))
            torch.nn.init.normal_(parameter, 0, 0.01 if last else 0.1)


def write_config(folder: Path, **values: Any) -> None:
    """Add values to the config.json in ``folder``."""
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def write_processor(folder: Path, patch: int) -> None:
    """The tokenizer, and how pictures are cut into squares of ``patch`` pixels."""
    write_tokenizer(folder)
    numbers = {
        "patch_size": patch,
        "merge_size": MERGE,
        "temporal_patch_size": 2,
        "min_pixels": (patch * MERGE) ** 2,
        "max_pixels": (patch * MERGE * 8) ** 2,
        "image_processor_type": "Qwen2VLImageProcessor",
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(numbers))


def write_tokenizer(folder: Path) -> None:
    """The byte tokenizer, whose unused tokens have the names that the processor looks for."""
    build_tokenizer(1024).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        text = (folder / name).read_text(encoding="utf-8")
        for unused, own in NAMES.items():
            text = text.replace(unused, own)
        (folder / name).write_text(text, encoding="utf-8")
    file = folder / "tokenizer_config.json"
    # The processor spells placeholders in a text.
    options = {**json.loads(file.read_text()), "split_special_tokens": False}
    file.write_text(json.dumps(options, indent=2))
