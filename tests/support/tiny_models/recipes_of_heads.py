# SPDX-License-Identifier: Apache-2.0
"""What each tiny model is that is made from another: heads of drafting methods, and noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.tiny_models.recipe import (
    AssistantRecipe,
    BlockHeadRecipe,
    DerivedRecipe,
    HeadRecipe,
    PerturbedRecipe,
)
from tests.support.tiny_models.recipes_of_families import GEMMA4_HEADS
from tests.support.tiny_models.tokenizer import VOCABULARY_SIZE

_LLAMA_HEAD: Mapping[str, Any] = {"head_dim": 64, "intermediate_size": 256, "num_hidden_layers": 1}

# Heads of another size than any target's here, so that pages are unequal.
_WIDE: Mapping[str, Any] = {"head_dim": 128, "num_attention_heads": 2}

# Ranks that share the keys of a sequence all have the same key heads.
_ONE_KEY_HEAD: Mapping[str, Any] = {"num_key_value_heads": 1}


def _eagle3(
    family: str, source: str, depths: list[int], steps: int = 60, **changes: Any
) -> HeadRecipe:
    """A head of method eagle3 on what enters the target's layers ``depths``."""
    architecture = {
        **_LLAMA_HEAD,
        **_WIDE,
        "eagle_aux_hidden_state_layer_ids": depths,
        "num_aux_hidden_states": len(depths),
        **changes,
    }
    return HeadRecipe(
        name=f"{family}_eagle3",
        model_type="llama",
        source=source,
        method="eagle3",
        architecture=architecture,
        steps=steps,
    )


def _mtp(name: str, model_type: str, source: str, steps: int = 50) -> HeadRecipe:
    """The layer of the target's own kind that drafts for it."""
    return HeadRecipe(
        name=f"{name}_mtp",
        model_type=model_type,
        source=source,
        method="mtp",
        architecture={},
        steps=steps,
    )


def _block_head(
    family: str, method: str, source: str, depths: list[int], **changes: Any
) -> BlockHeadRecipe:
    """A head of method dflash or dspark that takes the output of the target's layers ``depths``."""
    options = {"mask_token_id": VOCABULARY_SIZE - 1, "target_layer_ids": depths}
    of_method: dict[str, dict[str, Any]] = {
        "dflash": {"dflash_config": options},
        "dspark": {**options, "markov_rank": 32},
    }
    return BlockHeadRecipe(
        name=f"{family}_{method}",
        model_type="qwen3",
        source=source,
        method=method,
        architecture={"head_dim": 64, "intermediate_size": 256, **of_method[method], **changes},
        steps=100,
        drafted=3,
    )


HEADS: tuple[DerivedRecipe, ...] = (
    HeadRecipe(
        name="llama_eagle",
        model_type="llama",
        source="llama_target",
        method="eagle",
        architecture=_LLAMA_HEAD,
        steps=100,
    ),
    HeadRecipe(
        name="one_key_head_eagle",
        model_type="llama",
        source="llama_one_key_head",
        method="eagle",
        architecture={**_LLAMA_HEAD, **_ONE_KEY_HEAD, "hidden_size": 64, "num_attention_heads": 2},
        steps=100,
    ),
    _eagle3("one_key_head", "llama_one_key_head", [0, 1], hidden_size=64, **_ONE_KEY_HEAD),
    HeadRecipe(
        name="gpt_oss_eagle3",
        model_type="llama",
        source="gpt_oss",
        method="eagle3",
        architecture={**_LLAMA_HEAD, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
        steps=180,
    ),
    _eagle3("llama", "llama_target", [0, 1]),
    # vLLM's DeepSeek has no hidden state to hand out before the first layer.
    _eagle3("deepseek_v2", "deepseek_v2_target", [1]),
    _eagle3("deepseek_v2_one_key", "deepseek_v2_target", [1], **_ONE_KEY_HEAD),
    _eagle3("gemma3", "gemma3", [1, 2, 3], 180),
    _eagle3("qwen3_next", "qwen3_next", [0, 1, 2]),
    _eagle3("granite4", "granite4", [0, 1, 2], 180),
    _eagle3("lfm2", "lfm2", [0, 1, 2]),
    _eagle3("deepseek_v32", "deepseek_v32_target", [1]),
    # On the embedding and on the output of the first layer. The one of mimo is for a target with
    # pictures, whose language part that model is (``pictured_model``).
    *(
        _eagle3(family, family, [0, 1])
        for family in (
            *("qwen3", "qwen3_moe", "qwen3_5", "qwen3_5_moe", "glm4_moe", "hy_v3", "ernie4_5_moe"),
            *("minimax_m2", "mimo", "mimo_v2"),
        )
    ),
    _eagle3("gemma4", "gemma4", [1, 2, 3]),
    _mtp("deepseek_v3", "deepseek_v3", "deepseek_v2_target"),
    _mtp("deepseek_v32", "deepseek_v32", "deepseek_v32_target"),
    _mtp("qwen3_next", "qwen3_next", "qwen3_next"),
    _mtp("glm4_moe", "glm4_moe", "glm4_moe"),
    _mtp("glm4_moe_wide", "glm4_moe", "glm4_moe_wide"),
    _mtp("glm4_moe_lite", "glm4_moe_lite", "glm4_moe_lite"),
    _mtp("exaone_moe", "exaone_moe", "exaone_moe"),
    _mtp("hy_v3", "hy_v3", "hy_v3"),
    _mtp("ernie4_5_moe", "ernie4_5_moe", "ernie4_5_moe", 60),
    _mtp("longcat_flash", "longcat_flash", "longcat_flash"),
    _mtp("openpangu", "pangu_ultra_moe", "openpangu"),
    _mtp("mimo", "qwen2", "mimo"),
    _mtp("mimo_v2", "mimo_v2_flash", "mimo_v2"),
    _mtp("qwen3_5_moe", "qwen3_5_moe", "qwen3_5_moe"),
    _mtp("qwen3_5", "qwen3_5", "qwen3_5"),
    _mtp("nemotron_h", "nemotron_h", "nemotron_h"),
    _mtp("step3p5", "step3p5", "step3p5"),
    AssistantRecipe(
        name="gemma4_mtp",
        model_type="gemma4_assistant",
        source="gemma4",
        method="mtp",
        architecture={
            "hidden_size": 64,
            **GEMMA4_HEADS,
            "intermediate_size": 128,
            "layer_types": ["sliding_attention", "full_attention"],
            "vocab_size_per_layer_input": 0,
        },
        steps=80,
    ),
    _block_head("gpt_oss", "dflash", "gpt_oss", [0, 1, 2]),
    # As published heads that mix windows and full attention, in KV groups of their own.
    _block_head(
        "gpt_oss_windows",
        "dflash",
        "gpt_oss",
        [0, 1, 2],
        num_hidden_layers=3,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        use_sliding_window=True,
        sliding_window=48,
        max_window_layers=0,
    ),
    _block_head("gpt_oss", "dspark", "gpt_oss", [0, 1, 2]),
    *(
        _block_head(
            "deepseek_v2_one_key", method, "deepseek_v2_target", [0], **_WIDE, **_ONE_KEY_HEAD
        )
        for method in ("dflash", "dspark")
    ),
    *(
        # The last layer's output is not taken: transformers hands it out normed.
        _block_head(family, method, source, depths, **_WIDE)
        for method in ("dflash", "dspark")
        for family, source, depths in (
            ("llama", "llama_target", [0]),
            ("deepseek_v2", "deepseek_v2_target", [0]),
            ("deepseek_v32", "deepseek_v32_target", [0]),
            ("qwen3_next", "qwen3_next", [0, 1]),
            ("granite4", "granite4", [0, 1]),
            ("lfm2", "lfm2", [0, 1]),
            ("qwen3", "qwen3", [0]),
            ("qwen3_moe", "qwen3_moe", [0]),
            ("qwen3_5", "qwen3_5", [0]),
        )
        # Of its context's keys a head of dspark for LFM2 notices one in 40, as long as it is
        # trained: no judge of a cache.
        if (family, method) != ("lfm2", "dspark")
    ),
    PerturbedRecipe(name="gemma3_perturbed", source="gemma3", noise=0.25),
    PerturbedRecipe(name="gemma3_alternating_perturbed", source="gemma3_alternating", noise=0.15),
)
