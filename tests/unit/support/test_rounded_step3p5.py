# SPDX-License-Identifier: Apache-2.0
"""Drafts in bfloat16 that judge an engine's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Lfm2Config, Lfm2ForCausalLM

from tests.support.rounded_step3p5 import RoundedDraftModel, spacing

SIZES = {
    "vocab_size": 50,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "layer_types": ["conv", "full_attention"],
    "num_hidden_layers": 2,
}


@pytest.mark.parametrize("tied", [True, False])
def test_a_draft_rounds_between_its_embedding_and_its_last_projection(
    tied: bool, tmp_path: Path
) -> None:
    """Near the same weights in float32, and not the same: only the last projection is as wide."""
    torch.manual_seed(0)
    model = Lfm2ForCausalLM(Lfm2Config(**SIZES, tie_word_embeddings=tied)).to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    tokens = [3, 1, 4, 1, 5, 9, 2, 6]
    rows = RoundedDraftModel(tmp_path).rows(tokens[:6], tokens[6:])
    with torch.inference_mode():
        wide = model.float()(input_ids=torch.tensor([tokens]), use_cache=False).logits[0, 5:]
    assert rows.dtype == torch.float32
    assert rows.shape == wide.shape == (3, 50)
    off = float((rows - wide).abs().max())
    assert 0 < off < 4 * spacing(float(wide.abs().max()))
    # Logits themselves keep more bits than bfloat16 has.
    assert (rows != rows.to(torch.bfloat16).float()).any()
