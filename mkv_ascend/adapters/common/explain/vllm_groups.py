# SPDX-License-Identifier: Apache-2.0
"""vLLM's own grouping of layers, by its own functions with vllm-ascend's patches.

``mkv_ascend.commands.vllm_groups`` asks a module of the host's adapter in a process of its own, out
of which ``VLLM_PLUGINS=ascend`` keeps mkv_ascend.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from mkv_ascend.layout.component import LayerLayout, StateExtent, TokenExtent
from mkv_ascend.layout.kind import Kind
from mkv_ascend.layout.retention import Retention
from mkv_ascend.layout.serialization import from_dict


class GroupingHost(Protocol):
    """What differs between hosts: the module of an adapter, which has these functions."""

    def spec_of_mla(self, fields: dict[str, Any], sparse: tuple[int, ...] | None) -> Any:
        """The spec of an MLA layer; ``sparse``: widths of its parts where it is sparse."""

    def complete(self, config: Any) -> None:
        """Add what this vLLM reads besides to the few fields of its configuration."""

    def block_bytes(self, groups: list[Any]) -> tuple[int, int]:
        """Bytes of one block id: as vLLM counts them, and as they are kept."""


def _spec(layout: LayerLayout, retention: Retention, padded: int | None, host: GroupingHost) -> Any:
    """vLLM's or vllm-ascend's spec of a layer: the recipe of its layout, backwards."""
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec, SlidingWindowSpec

    if layout.kind is Kind.MAMBA:
        shapes = [x.extent for x in layout.components]
        return MambaSpec(
            block_size=layout.tokens_per_block,
            shapes=tuple(x.state_shape for x in shapes if isinstance(x, StateExtent)),
            dtypes=tuple(getattr(torch, x.dtype) for x in layout.components),
            page_size_padded=padded,
            num_speculative_blocks=retention.extra_blocks,
        )
    rows = [x.extent for x in layout.components if isinstance(x.extent, TokenExtent)]
    dims = tuple(row.dim for row in rows)
    latent = layout.kind in (Kind.MLA, Kind.SPARSE_MLA)
    common: dict[str, Any] = {
        "block_size": layout.tokens_per_block,
        "num_kv_heads": rows[0].heads,
        "head_size": sum(dims) if latent else dims[0],
        "dtype": getattr(torch, layout.components[0].dtype),
        "page_size_padded": padded,
    }
    if latent:
        return host.spec_of_mla(common, dims if layout.kind is Kind.SPARSE_MLA else None)
    if layout.kind is Kind.SLIDING_WINDOW:
        return SlidingWindowSpec(**common, sliding_window=retention.extent)
    return FullAttentionSpec(**common)


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


def group_by_vllm(question: Mapping[str, Any], host: GroupingHost) -> dict[str, Any]:
    """The fields of OtherGrouping; to be called in a process with vllm-ascend."""
    import vllm_ascend.ops  # noqa: F401  First of vllm_ascend, or its imports go in a circle.
    from vllm_ascend.utils import adapt_patch

    adapt_patch(is_global_patch=True)
    specs = {}
    for layer in question["layers"]:
        layout = from_dict(LayerLayout, layer["layout"])
        retention = from_dict(Retention, layer["retention"])
        specs[layout.layer] = _spec(layout, retention, layer["padded"], host)
    return group_specs(host, specs, question["tokens"], question["tokens_per_step"])


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
