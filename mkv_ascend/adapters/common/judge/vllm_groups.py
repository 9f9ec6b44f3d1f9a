# SPDX-License-Identifier: Apache-2.0
"""vLLM's own grouping of layers, by its own functions with vllm-ascend's patches.

For a plan that is shown, beside ours. Plugins' functions are not installed yet when it is asked.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol


class GroupingHost(Protocol):
    """What differs between hosts: the module of an adapter, which has these functions."""

    def complete(self, config: Any) -> None:
        """Add what this vLLM reads besides to the few fields of its configuration."""

    def block_bytes(self, groups: list[Any]) -> tuple[int, int]:
        """Bytes of one block id: as vLLM counts them, and as they are kept."""


def _vllm_config(tokens: int, tokens_per_step: int, encoder_tokens: int) -> Any:
    """The few fields that vLLM's grouping and its memory estimate read."""
    return SimpleNamespace(
        max_concurrent_batches=1,
        model_config=SimpleNamespace(max_model_len=tokens),
        # No worker of ours: the functions of mkv_ascend are not installed.
        parallel_config=SimpleNamespace(
            worker_cls="", decode_context_parallel_size=1, prefill_context_parallel_size=1
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False,
            max_num_batched_tokens=tokens_per_step,
            max_num_encoder_input_tokens=encoder_tokens,
        ),
        cache_config=SimpleNamespace(mamba_cache_mode="none", num_gpu_blocks_override=None),
        speculative_config=None,
    )


def group_specs(
    host: GroupingHost,
    specs: dict[str, Any],
    tokens: int,
    tokens_per_step: int,
    encoder_tokens: int = 0,
) -> dict[str, Any]:
    """The same for vLLM's own specs, vllm-ascend's patches being in place."""
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.core.single_type_kv_cache_manager import register_all_kvcache_specs

    config = _vllm_config(tokens, tokens_per_step, encoder_tokens)
    host.complete(config)
    register_all_kvcache_specs(config)
    try:
        groups = kv_cache_utils.get_kv_cache_groups(config, specs)
    except (NotImplementedError, AssertionError, ValueError) as error:
        return {"error": _described(error)}
    held: int = kv_cache_utils._max_memory_usage_bytes_from_groups(config, groups)
    counted, kept = host.block_bytes(groups)
    return {"groups": len(groups), "request_blocks": -(-held // counted), "block_bytes": kept}


def _described(error: Exception) -> str:
    """Class, message and place: some of vLLM's assertions have no message."""
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{words} ({Path(place.filename).name}:{place.lineno})"
