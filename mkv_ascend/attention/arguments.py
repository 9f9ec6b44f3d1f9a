# SPDX-License-Identifier: Apache-2.0
"""Arguments of vLLM's attention layers: which of them ask a backend to compute something more.

vLLM hands every argument of a layer to its backend's implementation. Those of vllm-ascend take each
of them, so one that they do not compute is lost in silence, and the tokens are wrong. The entries
of the catalog say what is computed (``BackendEntry.computes``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

SLIDING_WINDOW = "sliding_window"
SINKS = "sinks"

OPTIONAL = {
    "alibi_slopes": "ALiBi: a bias on scores that grows with the distance",
    "use_alibi_sqrt": "ALiBi by the square root of the distance",
    "logits_soft_cap": "a soft cap on scores",
    SINKS: "attention sinks",
    SLIDING_WINDOW: "a sliding window",
    "kv_sharing_target_layer_name": "keys and values of another layer",
    "chunk_lookback": "attention to a token's chunk and to chunks before it",
    "dual_chunk_attention_config": "dual chunk attention",
    "rswa_window": "a window behind a prefix that stays visible",
    "sink_len": "sink tokens with keys of the checkpoint",
    "dcp_q_replicate": "queries that all ranks of a context have",
    "non_causal_multi_token_decode": "attention in both directions among tokens of a draft",
}
"""Arguments that a backend computes or not, and what they ask for."""

OF_LAYER_CLASSES = {"RSWAAttention": "rswa_window", "StaticSinkAttention": "sink_len"}
"""Subclass of vLLM's layer -> the argument that it takes for itself, and that stands for it."""

OTHER_NAMES = {"per_layer_sliding_window": SLIDING_WINDOW}
"""Names that layers have for an argument of implementations."""

REQUIRED = frozenset(
    {
        # What LayerRequest has: sizes, kinds of attention, dtypes.
        *("num_heads", "head_size", "head_size_v", "num_kv_heads", "attn_type", "kv_cache_dtype"),
        *("cache_config", "use_sparse", "kv_lora_rank", "qk_rope_head_dim"),
        # What each implementation computes.
        *("scale", "q_lora_rank", "qk_nope_head_dim", "qk_head_dim", "v_head_dim", "kv_b_proj"),
        *("indexer", "topk_indices_buffer", "index_group_builder", "q_pad_num_heads"),
        # What names or chooses something.
        *("prefix", "quant_config", "attn_backend", "prefill_backend_cls", "layer_idx"),
        # What counts beside images that are seen in both directions alone.
        "mm_prefix_clamp_sliding_window",
    }
)
"""Arguments that each backend has some use for, or that ask nothing of it."""

_NEUTRAL: Mapping[str, int] = {"logits_soft_cap": 0, "chunk_lookback": -1}
"""Numbers that ask for nothing; None, False and what is empty do so anywhere."""


def optional_arguments(given: Mapping[str, Any]) -> frozenset[str]:
    """Names of the arguments that ask a backend for more, by the values that a layer was given.

    An argument that ``OPTIONAL`` and ``REQUIRED`` both lack is one of a vLLM that this table does
    not know: it asks for something, and no backend is known to compute it.
    """
    names = ((OTHER_NAMES.get(name, name), value) for name, value in given.items())
    return frozenset(name for name, value in names if name not in REQUIRED and _asks(name, value))


def _asks(name: str, value: Any) -> bool:
    if value is None or value is False or (isinstance(value, (list, dict, tuple)) and not value):
        return False
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return not (number and value == _NEUTRAL.get(name))


def arguments_told_by(text: Mapping[str, Any]) -> frozenset[str]:
    """The arguments that a model's layers will be given, as far as its configuration tells.

    Args:
        text: configuration of the language model.
    """
    attention = text.get("attn_config")
    baichuan = text.get("model_type") == "baichuan" and text.get("hidden_size") != 4096
    alibi = (
        text.get("model_type") == "bloom"
        or text.get("alibi")
        or (isinstance(attention, Mapping) and attention.get("alibi"))
        # baichuan.py: models of more than 7B.
        or baichuan
    )
    return optional_arguments(
        {
            "alibi_slopes": bool(alibi),
            "logits_soft_cap": text.get("attn_logit_softcapping"),
            "dual_chunk_attention_config": text.get("dual_chunk_attention_config"),
            "rswa_window": text.get("rswa_window"),
        }
    )


def described(arguments: Iterable[str]) -> str:
    """Arguments by name, each with what it asks for."""
    return ", ".join(
        f"{name} ({OPTIONAL[name]})" if name in OPTIONAL else name for name in sorted(arguments)
    )
