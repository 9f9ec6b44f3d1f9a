# SPDX-License-Identifier: Apache-2.0
"""The plain-torch head of Gemma 4 that judges engines, by the class that transformers 5.14 has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import Gemma4ForCausalLM, Gemma4TextConfig

from tests.support.tiny_models.assistant import (
    Assistant,
    assistant_loss,
    assistant_removal_share,
    rows_of_assistant,
    see,
)

WINDOW = 8
HEADS: dict[str, Any] = {
    "vocab_size": 264,
    "head_dim": 16,
    "global_head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attention_k_eq_v": True,
    "num_global_key_value_heads": 1,
    "sliding_window": WINDOW,
    "hidden_size_per_layer_input": 0,
    "max_position_embeddings": 64,
}
TARGET = {
    "hidden_size": 48,
    "intermediate_size": 32,
    "num_hidden_layers": 4,
    "vocab_size_per_layer_input": 264,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "tie_word_embeddings": False,
}
ASSISTANT = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "vocab_size_per_layer_input": 0,
    "layer_types": ["sliding_attention", "full_attention"],
}
CONTEXT = torch.randint(0, 250, (3 * WINDOW,), generator=torch.Generator().manual_seed(1)).tolist()


def spread(model: Any) -> Any:
    """Wide weights, so that keys count."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
        else:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    return model.eval()


@pytest.fixture(scope="module")
def head() -> Assistant:
    torch.manual_seed(0)
    target = Gemma4ForCausalLM._from_config(
        Gemma4TextConfig(**HEADS, **TARGET), attn_implementation="eager"
    )
    config = Gemma4TextConfig(**HEADS, **ASSISTANT)
    made: Assistant = spread(Assistant(spread(target), config))
    return made


def of_transformers(head: Assistant) -> Any:
    """The same head as transformers' class."""
    transformers = pytest.importorskip(
        "transformers.models.gemma4_assistant",
        reason="transformers 5.5.4, which vllm-ascend 0.23.0 asks for, has no such class",
    )
    text = {**HEADS, **ASSISTANT, "num_kv_shared_layers": ASSISTANT["num_hidden_layers"]}
    config = transformers.Gemma4AssistantConfig(
        text_config=text, backbone_hidden_size=TARGET["hidden_size"]
    )
    model = transformers.Gemma4AssistantForCausalLM._from_config(
        config, attn_implementation="eager"
    )
    weights = {**head.weights(), "lm_head.weight": head.embed_tokens.weight}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all("layer_scalar" in name or "inv_freq" in name for name in missing), missing
    return model.eval()


def test_rows_are_those_of_transformers(head: Assistant) -> None:
    """Three passes from one position, behind the window of the first layer."""
    model, drafted = of_transformers(head), [7, 200]
    ours = rows_of_assistant(head, CONTEXT, drafted)
    with torch.inference_mode():
        seen = see(head.target, torch.tensor([CONTEXT[:-1]]))
        shared = {kind: (seen.keys[kind], seen.values[kind]) for kind in seen.keys}
        # As transformers keeps them: no more keys of a window than it sees from this position.
        shared["sliding_attention"] = tuple(x[:, :, -WINDOW:] for x in shared["sliding_attention"])
        known = seen.states[:, -1:]
        position = torch.tensor([[len(CONTEXT) - 2]])
        for row, token in zip(ours, [CONTEXT[-1], *drafted], strict=True):
            embedded = head.target.get_input_embeddings()(torch.tensor([[token]]))
            output = model(
                inputs_embeds=torch.cat([embedded, known], dim=-1),
                position_ids=position,
                shared_kv_states=shared,
            )
            known = output.last_hidden_state
            torch.testing.assert_close(row, output.logits[0, 0], atol=1e-4, rtol=1e-4)


def test_only_keys_up_to_the_position_and_in_the_window_count(head: Assistant) -> None:
    before = rows_of_assistant(head, CONTEXT, [])
    assert not torch.allclose(before, rows_of_assistant(head, [9, *CONTEXT[1:]], []), atol=1e-3)
    share = assistant_removal_share(head, [CONTEXT])
    assert 0 < share <= 1


def test_the_loss_is_of_what_the_target_says(head: Assistant) -> None:
    loss = assistant_loss(head, torch.tensor([CONTEXT]))
    loss.backward()
    assert loss.item() > 0
    assert all(parameter.grad is not None for parameter in head.parameters())
