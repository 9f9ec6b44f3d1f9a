# SPDX-License-Identifier: Apache-2.0
"""Gemma 4: windows with heads of one size, full attention with heads of another, as target and
draft, judged by Hugging Face."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from tests.support import engine, reference
from tests.support.pairs import (
    assert_drafts_are_the_drafts_own,
    assert_greedy_tokens_of_reference,
    backends,
)

pytestmark = pytest.mark.host("0.23")

LAYERS = ("sliding_attention", "full_attention")


def random_model(directory: Path, window_head: int, full_head: int) -> str:
    """Two layers of each kind."""
    torch.manual_seed(0)
    model = Gemma4ForCausalLM(
        Gemma4TextConfig(
            vocab_size=264,
            vocab_size_per_layer_input=264,
            hidden_size=128,
            hidden_size_per_layer_input=32,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=window_head,
            global_head_dim=full_head,
            sliding_window=128,
            layer_types=[*LAYERS, *LAYERS],
            max_position_embeddings=1024,
            num_kv_shared_layers=0,
            tie_word_embeddings=False,
            bos_token_id=256,
            eos_token_id=257,
            pad_token_id=258,
        )
    )
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            # Wide projections of queries: keys give different scores, and most of a context counts.
            torch.nn.init.normal_(parameter, 0, 0.5 if "lm_head" in name else 0.15)
    model.save_pretrained(directory)
    return str(directory)


def texts() -> list[list[int]]:
    return [[5 + (step * step * 7 + step) % 250 for step in range(n)] for n in (9, 131, 260, 40)]


@pytest.mark.parametrize(("window_head", "full_head"), [(64, 128), (256, 512)])
def test_tokens_are_those_of_hugging_face(tmp_path: Path, window_head: int, full_head: int) -> None:
    """In chunks, from the prefix cache, and as its own draft, which must be accepted whole."""
    model = random_model(tmp_path, window_head, full_head)
    first = reference.greedy_tokens(model, [texts()[2]], 1)[0]
    without_half = reference.greedy_tokens(model, [texts()[2][130:]], 1)[0]
    case = engine.Scenario(
        model=model,
        draft=model,
        prompts=texts(),
        max_tokens=12,
        record_drafts=True,
        repeats=2,
        engine={"max_num_batched_tokens": 96},
    )
    result = engine.run(case)
    assert first != without_half  # or the model does not look that far back
    assert backends(result) == {
        "target": {"fused_infer_attention"},
        "draft": {"fused_infer_attention"},
    }
    assert_greedy_tokens_of_reference(case, result)
    assert_drafts_are_the_drafts_own(case, result)
    assert result.num_accepted == result.num_draft_tokens > 0
    assert max(result.cached_tokens[len(case.prompts) :]) >= 128
