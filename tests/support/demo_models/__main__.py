# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.support.demo_models``: train the demo's two models anew.

Takes some minutes on one core. The checkpoints in the repository were made by this program; other
versions of torch make others, which tell the same stories.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from emulated_npu.example_models import DRAFT, FOLDER, NAMES, TARGET
from emulated_npu.example_models.stories import Story, story
from tests.support.demo_models.tokenizer import build_tokenizer
from tests.support.tiny_models.training import build_optimizers, rate_factor

ROWS = 8
"""Stories of one step of training."""
IGNORED = -100
"""Label of what no loss is taken of: padding behind a story."""
MAX_POSITIONS = 512
RATES: Any = SimpleNamespace(learning_rate=0.01, vector_learning_rate=3e-3)
"""Of matrices (OrthogonalMomentum) and of all other parameters (AdamW)."""

ARCHITECTURES: dict[str, tuple[str, int, dict[str, Any]]] = {
    # DeepSeek-V2's kind, with the sizes of MLA that Ascend operators document.
    TARGET: (
        "deepseek_v2",
        900,
        {
            "hidden_size": 192,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "intermediate_size": 384,
            "moe_intermediate_size": 64,
            "n_routed_experts": 8,
            "n_shared_experts": 1,
            "num_experts_per_tok": 2,
            "first_k_dense_replace": 1,
            "n_group": 1,
            "topk_group": 1,
            "topk_method": "greedy",
            "routed_scaling_factor": 1.0,
            "norm_topk_prob": False,
            "q_lora_rank": None,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 128,
            "v_head_dim": 128,
        },
    ),
    # Gemma 3's kind: a window and full attention lie in two KV groups.
    DRAFT: (
        "gemma3_text",
        # Few, so that it guesses some words that the target knows.
        220,
        {
            "hidden_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "query_pre_attn_scalar": 64,
            "intermediate_size": 192,
            "layer_types": ["sliding_attention", "full_attention"],
            "sliding_window": 32,
        },
    ),
}
"""Name -> model type of transformers, steps, arguments of its configuration."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.demo_models",
        description=(__doc__ or "").split("\n\n", 1)[1],
    )
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)} (default: both)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where to write (%(default)s)")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"no demo model {unknown[0]!r}; there are {', '.join(NAMES)}")
    torch.set_num_threads(1)
    for name in options.names or NAMES:
        print(f"{name}: written to {make(name, options.folder)}")
    return 0


def make(name: str, folder: Path) -> Path:
    """Train the model ``name`` and write its checkpoint, in bfloat16, below ``folder``."""
    from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

    model_type, steps, architecture = ARCHITECTURES[name]
    tokenizer = build_tokenizer(some_stories(2000, seed=1), MAX_POSITIONS)
    special = {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        model_type,
        vocab_size=len(tokenizer),
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=False,
        rms_norm_eps=1e-6,
        **special,
        **architecture,
    )
    model = AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", dtype=torch.float32
    )
    train(model, batches(tokenizer, steps), steps)
    model.to(torch.bfloat16)
    model.generation_config = GenerationConfig(do_sample=False, **special)
    path = folder / name
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def some_stories(count: int, seed: int) -> Iterator[Story]:
    """``count`` stories, the same ones for the same seed."""
    draw = random.Random(seed)
    return (story(draw) for _ in range(count))


def batches(tokenizer: Any, steps: int) -> Iterator[torch.Tensor]:
    """int64 ``[ROWS, longest]`` for each step: a conversation a row, ``IGNORED`` behind it."""
    draw = random.Random(2)
    for _ in range(steps):
        rows = [torch.tensor(conversation(tokenizer, story(draw))) for _ in range(ROWS)]
        yield torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)


def conversation(tokenizer: Any, told: Story) -> list[int]:
    """Token ids of a question and its answer, as the server's chat has them."""
    messages = [
        {"role": "user", "content": told.question},
        {"role": "assistant", "content": told.answer},
    ]
    text = tokenizer.apply_chat_template(messages, tokenize=False)
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def train(model: Any, data: Iterator[torch.Tensor], steps: int) -> None:
    """One pass over ``data``; progress on standard error."""
    optimizers = build_optimizers(model, RATES)
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_factor(step, steps))
        for optimizer in optimizers
    ]
    model.train()
    for step, tokens in enumerate(data):
        logits = model(input_ids=tokens.clamp(min=0), use_cache=False).logits
        labels = tokens[:, 1:].flatten()
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels, ignore_index=IGNORED)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        if step % 20 == 0 or step + 1 == steps:
            print(f"step {step + 1} of {steps}: loss {loss.item():.3f}", file=sys.stderr)
    model.eval()


if __name__ == "__main__":
    sys.exit(main())
