# SPDX-License-Identifier: Apache-2.0
"""Tiny configurations of any family, with what published ones have and vLLM reads."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

from tests.support.tiny_models.tokenizer import (
    BOS_TOKEN_ID,
    EOS_TOKEN_ID,
    PAD_TOKEN_ID,
    VOCABULARY_SIZE,
)

MAX_POSITIONS = 1024

# Names that configuration classes give to the same size.
_HIDDEN = ("hidden_size", "n_embd", "d_model")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads")
_WIDTHS = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "block_ff_dim")
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")
_WIDTH = 128
_FIXED: dict[str, Any] = {
    "vocab_size": VOCABULARY_SIZE,
    "bos_token_id": BOS_TOKEN_ID,
    "eos_token_id": EOS_TOKEN_ID,
    "pad_token_id": PAD_TOKEN_ID,
    "tie_word_embeddings": False,
    "sliding_window": 32,
    "attention_multiplier": 0.125,
    # Experts.
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_topk": 2,
    "n_shared_experts": 1,
    "num_shared_experts": 1,
    "num_shared_expert": 1,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    "shared_intermediate_size": 64,
    "moe_shared_expert_intermediate_size": 64,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    # MLA.
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    # States.
    "chunk_size": 16,
    "mamba_chunk_size": 16,
    "state_size": 32,
    "ssm_state_size": 32,
    "mamba_d_state": 32,
    "mamba_d_head": 64,
    "mamba_head_dim": 64,
    "n_groups": 1,
    "mamba_n_groups": 1,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    # Others.
    "word_embed_proj_dim": None,
    "query_pre_attn_scalar": 64,
}
_SIGMOID = {"topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True}
_TIED = {"tie_word_embeddings": True}
_OWN: dict[str, dict[str, Any]] = {
    "afmoe": {
        "n_group": 1,
        "topk_group": 1,
        "route_norm": True,
        "score_func": "sigmoid",
        # vLLM's own configuration class takes this one, whatever ``rope_parameters`` say.
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    },
    "bamba": {"attn_layer_indices": [1]},
    "bloom": _TIED,
    "cohere": _TIED,
    "cohere2": _TIED,
    "deepseek_v3": _SIGMOID,
    "dots1": {**_SIGMOID, "moe_layer_freq": 1, "sliding_window": None},
    "falcon": {"ffn_hidden_size": None},
    "gemma": _TIED,
    "gemma2": _TIED,
    "gemma4_text": {
        "hidden_size_per_layer_input": 0,
        "global_head_dim": 128,
        "num_global_key_value_heads": 1,
        "vocab_size_per_layer_input": VOCABULARY_SIZE,
    },
    "glm4_moe": {"head_dim": 64},
    "glm4_moe_lite": {"first_k_dense_replace": 1},
    "hunyuan_v1_dense": {"use_qk_norm": True},
    "hunyuan_v1_moe": {
        "use_qk_norm": True,
        "use_mixed_mlp_moe": True,
        "num_shared_expert": 1,
        "moe_intermediate_size": _WIDTH,
    },
    "lfm2": _TIED,
    # transformers has this size, of which it makes nothing.
    "nemotron_h": {"sliding_window": None},
    "longcat_flash": {"zero_expert_type": "identity"},
    "minimax_m2": {"rotary_dim": 32, "scoring_func": "sigmoid", "use_routing_bias": True},
}
"""What published configurations of some families have beside that.

vLLM reads it, some of it without a default; transformers' classes lack much of it.
"""
_LAYER_TYPES = {"granitemoehybrid": ("mamba", "attention"), "lfm2": ("conv", "full_attention")}
"""Kinds of layers of families whose class has one kind of them by default."""
_ALL_HEADS = ("olmo", "phi")
"""Families of which vLLM gives keys of its own to each head, as published models have it."""
BFLOAT16_ONLY = ("olmo_hybrid",)
"""Families of which vLLM refuses float32: its gated delta rule for them does not compute in it."""
_WHOLE_LAST = ("gemma4_text",)
"""Families whose class makes the last layer attend to all tokens."""
_ORDERED = ("gpt_oss",)
"""Families of which vLLM does not read ``layer_types``: it has the published order of layers."""


def tiny_config(family: str, chance: random.Random) -> Any:
    """A configuration of ``family`` of the smallest sizes that Ascend's operators document."""
    from transformers import AutoConfig

    known = AutoConfig.for_model(family).to_dict()
    heads = chance.choice((2, 4))
    sizes: dict[str, Any] = {
        **_of(_HEADS, heads),
        **_of(_KEY_HEADS, chance.choice([n for n in (1, 2, 4) if n <= heads])),
        **_of(_LAYERS, chance.choice((2, 2, 3))),
        **_of(_WIDTHS, _WIDTH),
        **_of(_POSITIONS, MAX_POSITIONS),
        "head_dim": 64,
        **_FIXED,
    }
    hidden = chance.choice((128, 256)) if "head_dim" in known else 64 * heads
    sizes |= _of(_HIDDEN, hidden)
    if "kv_lora_rank" in known:
        sizes |= {**_of(_KEY_HEADS, heads), "q_lora_rank": chance.choice((None, 128))}
        sizes.pop("head_dim")
    if family in _ALL_HEADS:
        sizes |= _of(_KEY_HEADS, heads)
    inner = 2 * hidden // 64
    sizes |= {"mamba_n_heads": inner, "mamba_num_heads": inner, "mamba_d_ssm": 2 * hidden}
    if family == "mamba2":
        sizes["num_heads"] = inner
    if types := _LAYER_TYPES.get(family) or known.get("layer_types"):
        drawn = _layer_types(chance, list(dict.fromkeys(types)), sizes["n_layer"])
        if family in _WHOLE_LAST:
            place = drawn.index("full_attention")
            drawn[place], drawn[-1] = drawn[-1], drawn[place]
        if family not in _ORDERED:
            sizes["layer_types"] = drawn
    rope = known.get("rope_parameters")
    if isinstance(rope, dict) and rope.get("rope_type") == "default":
        sizes["rope_parameters"] = {**rope, "rope_theta": chance.choice((500.0, 1e4, 1e6))}
    own = dict(_OWN.get(family, {}))
    if family == "lfm2":
        own |= {"block_dim": hidden, "conv_dim": hidden}
    if family == "phi":
        # vLLM does not read it.
        own["intermediate_size"] = 4 * hidden
    if family == "minimax_m2":
        sizes["rope_parameters"]["partial_rotary_factor"] = own["rotary_dim"] / 64
    given = {k: v for k, v in sizes.items() if k in known}
    return AutoConfig.for_model(family, **{**given, **own})


def _layer_types(chance: random.Random, known: list[str], count: int) -> list[str]:
    """Of any order, each kind once at least.

    vLLM gives a window to all layers where a configuration has one and all layers are of one kind.
    """
    drawn = [chance.choice(known) for _ in range(count)]
    for name in known:
        spare = [place for place, one in enumerate(drawn) if drawn.count(one) > 1]
        if name not in drawn and spare:
            drawn[chance.choice(spare)] = name
    return drawn


def _of(names: Iterable[str], value: Any) -> dict[str, Any]:
    return dict.fromkeys(names, value)
