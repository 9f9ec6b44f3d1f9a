# SPDX-License-Identifier: Apache-2.0
"""What each tiny model is that is made from another: heads of drafting methods, and noise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.support.tiny_models.recipe import (
    BlockHeadRecipe,
    DerivedRecipe,
    HeadRecipe,
    PerturbedRecipe,
)
from tests.support.tiny_models.tokenizer import VOCABULARY_SIZE

__all__ = ["HEADS"]

_LLAMA_HEAD: Mapping[str, Any] = {
    "head_dim": 64,
    "intermediate_size": 256,
    "num_hidden_layers": 1,
}

# Heads of another size than any target's here, so that pages are unequal.
_WIDE_HEAD: Mapping[str, Any] = {**_LLAMA_HEAD, "head_dim": 128, "num_attention_heads": 2}


def _block_head(depths: list[int]) -> dict[str, Any]:
    """A head of method dflash that takes the output of the target's layers ``depths``."""
    return {
        "head_dim": 64,
        "intermediate_size": 256,
        "dflash_config": {"mask_token_id": VOCABULARY_SIZE - 1, "target_layer_ids": depths},
    }


def _markov_head(depths: list[int]) -> dict[str, Any]:
    """A head of method dspark that takes the output of the target's layers ``depths``."""
    return {
        "head_dim": 64,
        "intermediate_size": 256,
        "mask_token_id": VOCABULARY_SIZE - 1,
        "target_layer_ids": depths,
        "markov_rank": 32,
    }


HEADS: tuple[DerivedRecipe, ...] = (
    HeadRecipe(
        name="llama_eagle",
        model_type="llama",
        source="llama_target",
        method="eagle",
        architecture=_LLAMA_HEAD,
        steps=100,
    ),
    # Ranks that share the keys of a sequence all have the same key heads.
    HeadRecipe(
        name="one_key_head_eagle",
        model_type="llama",
        source="llama_one_key_head",
        method="eagle",
        architecture={
            **_LLAMA_HEAD,
            "hidden_size": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
        steps=100,
    ),
    HeadRecipe(
        name="one_key_head_eagle3",
        model_type="llama",
        source="llama_one_key_head",
        method="eagle3",
        architecture={
            **_WIDE_HEAD,
            "hidden_size": 64,
            "num_key_value_heads": 1,
            "eagle_aux_hidden_state_layer_ids": [0, 1],
            "num_aux_hidden_states": 2,
        },
        steps=60,
    ),
    HeadRecipe(
        name="gpt_oss_eagle3",
        model_type="llama",
        source="gpt_oss",
        method="eagle3",
        architecture={**_LLAMA_HEAD, "eagle_aux_hidden_state_layer_ids": [1, 2, 3]},
        steps=180,
    ),
    HeadRecipe(
        name="llama_eagle3",
        model_type="llama",
        source="llama_target",
        method="eagle3",
        architecture={
            **_WIDE_HEAD,
            "eagle_aux_hidden_state_layer_ids": [0, 1],
            "num_aux_hidden_states": 2,
        },
        steps=60,
    ),
    HeadRecipe(
        name="deepseek_v2_eagle3",
        model_type="llama",
        source="deepseek_v2_target",
        method="eagle3",
        # vLLM's DeepSeek has no hidden state to hand out before the first layer.
        architecture={
            **_WIDE_HEAD,
            "eagle_aux_hidden_state_layer_ids": [1],
            "num_aux_hidden_states": 1,
        },
        steps=60,
    ),
    HeadRecipe(
        name="deepseek_v2_one_key_eagle3",
        model_type="llama",
        source="deepseek_v2_target",
        method="eagle3",
        architecture={
            **_WIDE_HEAD,
            "num_key_value_heads": 1,
            "eagle_aux_hidden_state_layer_ids": [1],
            "num_aux_hidden_states": 1,
        },
        steps=60,
    ),
    *(
        # Heads on every other family of targets, of a head size that none of these has.
        HeadRecipe(
            name=f"{family}_eagle3",
            model_type="llama",
            source=source,
            method="eagle3",
            architecture={
                **_WIDE_HEAD,
                "eagle_aux_hidden_state_layer_ids": depths,
                "num_aux_hidden_states": len(depths),
            },
            steps=steps,
        )
        for family, source, depths, steps in (
            ("gemma3", "gemma3", [1, 2, 3], 180),
            ("qwen3_next", "qwen3_next", [0, 1, 2], 60),
            ("granite4", "granite4", [0, 1, 2], 180),
            ("lfm2", "lfm2", [0, 1, 2], 60),
            ("deepseek_v32", "deepseek_v32_target", [1], 60),
            ("qwen3", "qwen3", [0, 1], 60),
            ("qwen3_moe", "qwen3_moe", [0, 1], 60),
            ("qwen3_5", "qwen3_5", [0, 1], 60),
            ("qwen3_5_moe", "qwen3_5_moe", [0, 1], 60),
            ("glm4_moe", "glm4_moe", [0, 1], 60),
            ("hy_v3", "hy_v3", [0, 1], 60),
            ("ernie4_5_moe", "ernie4_5_moe", [0, 1], 60),
        )
    ),
    HeadRecipe(
        name="deepseek_v3_mtp",
        model_type="deepseek_v3",
        source="deepseek_v2_target",
        method="mtp",
        architecture={},
        steps=50,
    ),
    HeadRecipe(
        name="deepseek_v32_mtp",
        model_type="deepseek_v32",
        source="deepseek_v32_target",
        method="mtp",
        architecture={},
        steps=50,
    ),
    BlockHeadRecipe(
        name="gpt_oss_dflash",
        model_type="qwen3",
        source="gpt_oss",
        method="dflash",
        architecture=_block_head([0, 1, 2]),
        steps=100,
        drafted=3,
    ),
    # As published heads that mix windows and full attention, in KV groups of their own.
    BlockHeadRecipe(
        name="gpt_oss_windows_dflash",
        model_type="qwen3",
        source="gpt_oss",
        method="dflash",
        architecture={
            **_block_head([0, 1, 2]),
            "num_hidden_layers": 3,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "use_sliding_window": True,
            "sliding_window": 48,
            "max_window_layers": 0,
        },
        steps=100,
        drafted=3,
    ),
    BlockHeadRecipe(
        name="gpt_oss_dspark",
        model_type="qwen3",
        source="gpt_oss",
        method="dspark",
        architecture=_markov_head([0, 1, 2]),
        steps=100,
        drafted=3,
    ),
    *(
        # Ranks that share the keys of a sequence all have its key heads.
        BlockHeadRecipe(
            name=f"deepseek_v2_one_key_{method}",
            model_type="qwen3",
            source="deepseek_v2_target",
            method=method,
            architecture={
                **options([0]),
                "head_dim": 128,
                "num_attention_heads": 2,
                "num_key_value_heads": 1,
            },
            steps=100,
            drafted=3,
        )
        for method, options in (("dflash", _block_head), ("dspark", _markov_head))
    ),
    *(
        # Pages of another size than any target's here. The last layer's output is not taken:
        # transformers hands it out normed.
        BlockHeadRecipe(
            name=f"{family}_{method}",
            model_type="qwen3",
            source=source,
            method=method,
            architecture={**options(depths), "head_dim": 128, "num_attention_heads": 2},
            steps=100,
            drafted=3,
        )
        for method, options in (("dflash", _block_head), ("dspark", _markov_head))
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
    HeadRecipe(
        name="qwen3_next_mtp",
        model_type="qwen3_next",
        source="qwen3_next",
        method="mtp",
        architecture={},
        steps=50,
    ),
    PerturbedRecipe(name="gemma3_perturbed", source="gemma3", noise=0.25),
    PerturbedRecipe(name="gemma3_alternating_perturbed", source="gemma3_alternating", noise=0.15),
)
