# SPDX-License-Identifier: Apache-2.0
"""A draft whose files of weights lack what its class has does not draft with memory as it is."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, Olmo2Config, Olmo2ForCausalLM

from tests.support import engine
from tests.support.stock import each_runner

NUMBERS = {
    "vocab_size": 264,
    "hidden_size": 128,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("models") / "target"
    LlamaForCausalLM(LlamaConfig(**NUMBERS)).save_pretrained(folder)
    return folder


def write_draft(folder: Path, *lacking: str) -> Path:
    """A model whose matrices no check reads before an engine starts, without some tensors."""
    torch.manual_seed(2)
    Olmo2ForCausalLM(Olmo2Config(**NUMBERS)).save_pretrained(folder)
    file = folder / "model.safetensors"
    weights = load_file(file)
    for name in lacking:
        del weights[name]
    save_file(weights, file, metadata={"format": "pt"})
    return folder


@pytest.mark.host("0.23", cases=["v1"])
@each_runner
def test_a_part_of_a_fused_matrix_and_a_whole_one(target, runner, tmp_path):
    """vLLM itself says nothing: it counts no linear layers."""
    layers = ("model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.down_proj.weight")
    draft = write_draft(tmp_path / "draft", *layers)
    case = engine.Scenario(
        model=str(target), draft=str(draft), prompts=[[5, 6]], max_tokens=2, environment=runner
    )
    with pytest.raises(engine.EngineFailedError) as refused:
        engine.run(case)
    said = str(refused.value)
    lacking = "model.layers.0.self_attn.qkv_proj.weight, model.layers.1.mlp.down_proj.weight"
    assert f"weights in {draft} have nothing, or a part, for {lacking}, which its" in said
