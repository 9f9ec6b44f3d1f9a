# SPDX-License-Identifier: Apache-2.0
"""vLLM's own path from specs to KV cache configurations, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import vllm_ascend.ops  # First of vllm_ascend, or its imports go in a circle.
import vllm_ascend.patch.platform  # noqa: F401  Before specs are registered, as in an engine.
from vllm.v1.core import kv_cache_utils
from vllm.v1.engine import core as engine_core
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec

from mkv_ascend.adapters.contract import WORKER
from mkv_ascend.layout.kind import Role
from mkv_ascend.layout.recipes import LayerFacts
from tests.support import hosts

layer_facts = hosts.module("kv_cache.layer_facts")

MIB = 2**20

FUNCTIONS = tuple(
    target.rpartition(":")[2]
    for target in hosts.module("kv_cache.engine_core").our_groups.record.targets
    if target.startswith(f"{kv_cache_utils.__name__}:")
)
"""Functions of ``kv_cache_utils`` that are replaced."""


def config(
    method: str = "draft_model",
    max_model_len: int = 1024,
    layout: dict[str, Any] | None = None,
    blocks: int | None = None,
    kv_transfer: Any = None,
    hash_block_size: int | None = None,
) -> Any:
    """What vLLM's functions read of a VllmConfig."""
    return SimpleNamespace(
        additional_config={"mkv_ascend": {"layout": layout or {}}},
        max_concurrent_batches=1,
        max_in_flight_tokens=512,
        use_v2_model_runner=False,
        attention_config=SimpleNamespace(hisparse_config=None),
        model_config=SimpleNamespace(
            max_model_len=max_model_len, original_max_model_len=max_model_len
        ),
        parallel_config=SimpleNamespace(
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            pipeline_parallel_size=1,
            worker_cls=WORKER,
        ),
        scheduler_config=SimpleNamespace(
            disable_hybrid_kv_cache_manager=False,
            max_num_batched_tokens=512,
            async_scheduling=False,
        ),
        cache_config=SimpleNamespace(
            cache_dtype="auto",
            kv_offloading_size=None,
            mamba_cache_mode="none",
            num_gpu_blocks_override=blocks,
            hash_block_size=hash_block_size,
            prefix_match_unit=hash_block_size,
            enable_prefix_caching=True,
            prefix_cache_retention_interval=None,
            get_resolved_kv_cache_layout=kv_cache_layout,
        ),
        kv_transfer_config=kv_transfer,
        quant_config=None,
        speculative_config=SimpleNamespace(
            method=method,
            num_speculative_tokens=3,
            use_eagle=lambda: method in ("eagle", "eagle3", "mtp"),
            use_eagle_block_drop=lambda: method in ("eagle", "eagle3", "mtp"),
            use_multi_module_mtp=lambda: False,
        ),
    )


def kv_cache_layout() -> Any:
    """The layout that vLLM 0.30.0 stores caches in on an Ascend NPU, by default."""
    from vllm.v1.kv_cache_layout import KVCacheLayout

    return KVCacheLayout.LBNHC


def layers_of(tensor: Any) -> list[str]:
    """The layers that share one tensor of a configuration."""
    named: list[str] = getattr(tensor, "shared_by", None) or tensor.layers
    return named


def full(heads: int = 2, dim: int = 64, block: int = 128) -> FullAttentionSpec:
    return FullAttentionSpec(
        block_size=block, num_kv_heads=heads, head_size=dim, dtype=torch.bfloat16
    )


def window(heads: int = 2, dim: int = 64, tokens: int = 256, block: int = 128) -> SlidingWindowSpec:
    return SlidingWindowSpec(
        block_size=block,
        num_kv_heads=heads,
        head_size=dim,
        dtype=torch.bfloat16,
        sliding_window=tokens,
    )


def mla(dim: int = 576, block: int = 128) -> AscendMLAAttentionSpec:
    return AscendMLAAttentionSpec(
        block_size=block, num_kv_heads=1, head_size=dim, dtype=torch.bfloat16
    )


def model(target: Sequence[Any], draft: Sequence[Any] = ()) -> dict[str, Any]:
    """Specs by layer name, tied to their facts as the worker ties them."""
    specs = {f"model.layers.{index}": spec for index, spec in enumerate(target)}
    specs.update({f"head.layers.{index}": spec for index, spec in enumerate(draft)})
    for name, spec in specs.items():
        role = Role.DRAFT if name.startswith("head.") else Role.TARGET
        is_mla = isinstance(spec, AscendMLAAttentionSpec)
        kernel_block = None if isinstance(spec, MambaSpec) else 128
        facts = LayerFacts(
            name, role, kernel_block=kernel_block, latent_dim=512 if is_mla else None, rope_dim=64
        )
        layer_facts.tie(spec, facts)
    return specs


def configs(specs: dict[str, Any], memory: int = 64 * MIB, **options: Any) -> Any:
    """As an engine core makes them."""
    return engine_core.get_kv_cache_configs(config(**options), [specs], [memory])


def layers(result: Any) -> list[list[str]]:
    return [group.layer_names for group in result.kv_cache_groups]


def stock_configs(
    monkeypatch: pytest.MonkeyPatch, specs: dict[str, Any], memory: int, **options: Any
) -> Any:
    """As vLLM makes them by itself."""
    with monkeypatch.context() as patch:
        for name in FUNCTIONS:
            ours = getattr(kv_cache_utils, name)
            patch.setattr(kv_cache_utils, name, ours.__wrapped__)
        return kv_cache_utils.get_kv_cache_configs(config(**options), [specs], [memory])
