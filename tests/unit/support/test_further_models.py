# SPDX-License-Identifier: Apache-2.0
"""Families of which transformers has no class: what they compute, and their checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.support import kimi_linear as token_by_token
from tests.support import reference
from tests.support.tiny_models import further_models, kimi_linear, training
from tests.support.tiny_models.recipes import find_recipe

FAMILIES = ("kimi_linear",)
TOKENS = torch.randint(0, 256, (75,), generator=torch.Generator().manual_seed(0))


def model_of(name: str) -> Any:
    """The tiny model with random weights, its matrices larger than at the start of training."""
    further_models.register()
    model = training.build_model(find_recipe(name)).eval()
    torch.manual_seed(1)
    for parameter in model.parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.12)
    return model


def logits_of(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        rows: torch.Tensor = model(input_ids=TOKENS[None], use_cache=False).logits[0]
    return rows


@pytest.mark.parametrize("least", [kimi_linear.LEAST, 0.0])
def test_delta_attention_in_chunks_is_that_of_one_token_after_another(monkeypatch, least) -> None:
    """The other reading of the paper judges an engine by itself; this one is trained."""
    # With 0 the scores of a chunk are never one product.
    monkeypatch.setattr(kimi_linear, "LEAST", least)
    config = find_recipe("kimi_linear").configuration()
    monkeypatch.setattr(token_by_token, "CONFIG", config)
    monkeypatch.setattr(token_by_token, "KDA_SIZE", 128)
    monkeypatch.setattr(token_by_token, "EPSILON", 1e-6)
    model = model_of("kimi_linear")
    weights = {name: value.clone() for name, value in model.published().items()}
    with torch.inference_mode():
        wanted = token_by_token.logits(weights, TOKENS.tolist())
    torch.testing.assert_close(logits_of(model), wanted, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_loaded_is_what_was_saved(family: str, tmp_path: Path) -> None:
    model = model_of(family)
    model.save_pretrained(tmp_path)
    assert torch.equal(logits_of(reference.load_model(tmp_path)), logits_of(model))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_weight_that_is_missing_is_named(family: str, tmp_path: Path) -> None:
    model_of(family).save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    weights = load_file(file)
    name = "model.layers.1.self_attn.o_proj.weight"
    del weights[name]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=name):
        reference.load_model(tmp_path)
