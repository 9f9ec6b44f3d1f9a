# SPDX-License-Identifier: Apache-2.0
"""Models of encoders alone, which keep no keys: they have no draft, and run as on stock.

vllm-ascend's model runner V2 does not take them, with us or without.
"""

from __future__ import annotations

import pytest
import torch
from transformers import BertConfig, BertModel

from tests.emulated import probes
from tests.support import programs
from tests.support.tiny_models import model_directory

PROMPTS = [[1, 5, 9, 30, 31], list(range(2, 60)), [7] * 3, list(range(90, 20, -1))]


@pytest.fixture
def model(tmp_path):
    """Heads of 32, as small models for retrieval have them, which no paged attention takes."""
    torch.manual_seed(3)
    sizes = {"hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 256}
    encoder = BertModel(BertConfig(vocab_size=100, num_hidden_layers=2, **sizes)).eval()
    encoder.save_pretrained(tmp_path)
    return encoder


def test_there_is_no_plan_to_explain(model, tmp_path):
    done = programs.run_program("mkv_ascend.cli", ["explain", str(tmp_path)])
    assert "no layer of these models keeps a KV cache" in done.output + done.errors


@pytest.mark.parametrize("eager", [True, False])
def test_embeddings(model, tmp_path, eager):
    served = {
        "model": str(tmp_path),
        "tokenizer": str(model_directory("llama_target")),
        "dtype": "float32",
        "max_model_len": 128,
        "kv_cache_memory_bytes": 1 << 20,
        "enforce_eager": eager,
    }
    found = programs.answer_of(probes.embeddings, {"engine": served, "prompts": PROMPTS})
    with torch.no_grad():
        firsts = [model(torch.tensor([prompt])).last_hidden_state[0, 0] for prompt in PROMPTS]
    expected = torch.nn.functional.normalize(torch.stack(firsts))
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-5)
    assert torch.pdist(expected).min() > 0.1, "prompts can be told apart"
