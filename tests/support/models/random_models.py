# SPDX-License-Identifier: Apache-2.0
"""Small models with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3NextConfig, Qwen3NextForCausalLM

from tests.support.tiny_models.tokenizer import BOS_TOKEN_ID, build_tokenizer


def random_model(directory: Path, value_heads: int, kv_heads: int) -> str:
    """Three layers with states and one with attention."""
    torch.manual_seed(0)
    model = Qwen3NextForCausalLM(
        Qwen3NextConfig(
            vocab_size=264,
            hidden_size=128,
            intermediate_size=256,
            moe_intermediate_size=64,
            shared_expert_intermediate_size=64,
            num_hidden_layers=4,
            num_attention_heads=4,
            num_key_value_heads=kv_heads,
            head_dim=64,
            num_experts=8,
            num_experts_per_tok=2,
            linear_num_key_heads=2,
            linear_num_value_heads=value_heads,
            linear_key_head_dim=64,
            linear_value_head_dim=64,
            max_position_embeddings=1024,
            bos_token_id=256,
            eos_token_id=257,
            pad_token_id=258,
        )
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0, 0.15)
    model.save_pretrained(directory)
    return str(directory)


def write_model(path: Path, seed: int, *, tie: bool = False) -> Path:
    """A random Llama whose greedy tokens vary; with ``tie`` two tokens always score the same."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=264,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            bos_token_id=BOS_TOKEN_ID,
            eos_token_id=257,
            initializer_range=0.4,
        )
    )
    if tie:
        # Whatever the hidden state, either 7 and 8 or 9 and 10 share the largest logit.
        row = model.lm_head.weight.data[7].clone()
        model.lm_head.weight.data.zero_()
        model.lm_head.weight.data[7:9] = row
        model.lm_head.weight.data[9:11] = -row
    model.save_pretrained(path)
    build_tokenizer(64).save_pretrained(path)
    return path


def write_rotary_pair(root: Path) -> tuple[Path, Path]:
    """A random Llama, and an ERNIE-4.5 that is the same function of its tokens.

    ERNIE turns neighbouring elements of a head where Llama turns those of its two halves; rows of
    its queries and keys are in the order that makes this the same. All that vLLM tells rotary
    modules apart by is equal.
    """
    from transformers import Ernie4_5Config, Ernie4_5ForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    llama = LlamaForCausalLM(LlamaConfig(**_sizes()))
    _scale(llama)
    ernie = Ernie4_5ForCausalLM(Ernie4_5Config(use_bias=False, **_sizes()))
    weights = llama.state_dict()
    for name in [name for name in weights if name.endswith(("q_proj.weight", "k_proj.weight"))]:
        halves = weights[name].unflatten(0, (-1, 2, HEAD // 2))
        weights[name] = halves.transpose(1, 2).flatten(0, 2)
    ernie.load_state_dict(weights)
    llama.save_pretrained(root / "llama")
    ernie.save_pretrained(root / "ernie")
    return root / "llama", root / "ernie"


def write_starcoder(path: Path) -> Path:
    """A random Starcoder2 whose rotary module is as a model's of ``write_rotary_pair``."""
    from transformers import Starcoder2Config, Starcoder2ForCausalLM

    torch.manual_seed(1)
    model = Starcoder2ForCausalLM(Starcoder2Config(sliding_window=None, **_sizes()))
    _scale(model)
    model.save_pretrained(path)
    return path


def write_experts(path: Path, per_token: int) -> Path:
    """A random Qwen3 with 8 experts in each layer, of which a token takes some."""
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(per_token)
    experts = {"num_experts": 8, "num_experts_per_tok": per_token, "moe_intermediate_size": 64}
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(norm_topk_prob=True, **experts, **_sizes()))
    _scale(model)
    model.save_pretrained(path)
    return path


HEAD = 64


def _sizes() -> dict[str, Any]:
    return {
        "vocab_size": 264,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": HEAD,
        "max_position_embeddings": 1024,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "bos_token_id": BOS_TOKEN_ID,
        "eos_token_id": 257,
        "pad_token_id": 258,
        "tie_word_embeddings": False,
    }


def _scale(model: torch.nn.Module) -> None:
    """Weights so large that attention decides which token is next."""
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, 0, 0.15)


def write_llama(path: Path, noise: float = 0.0) -> str:
    """A random Llama with heads of 64, whose weights differ by ``noise`` from those without."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=264,
            hidden_size=128,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            head_dim=64,
            max_position_embeddings=1024,
            bos_token_id=BOS_TOKEN_ID,
            eos_token_id=257,
            initializer_range=0.15,
        )
    )
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data += noise * torch.randn_like(parameter)
    model.save_pretrained(path)
    build_tokenizer(64).save_pretrained(path)
    return str(path)
