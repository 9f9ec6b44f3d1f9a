# SPDX-License-Identifier: Apache-2.0
"""vllm-ascend's own allocation and views of caches, run on a stand-in for its runner.

The stand-in has only what those methods read. If a later vllm-ascend reads more, tests fail with
the name of what is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import torch

# Before anything else of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # noqa: F401  # isort: skip
from vllm.v1.kv_cache_interface import (
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheSpec,
    UniformTypeKVCacheSpecs,
)
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from tests.support import hosts

NUM_BLOCKS = 5
Layers = Sequence[tuple[str, KVCacheSpec, Any]]
"""Name, spec and backend of each layer of a KV group."""


class StandInRunner:
    """What ``_allocate_kv_cache_tensors`` and ``_reshape_kv_cache_tensors`` read of the runner."""

    runner_only_attn_layers: frozenset[str] = frozenset()
    c8_k_cache_dtype = torch.int8
    c8_k_scale_cache_dtype = torch.float16
    _align_up = staticmethod(NPUModelRunner._align_up)
    _adjust_kv_layout = NPUModelRunner._adjust_kv_layout
    _allocate_int8_cache_tensor = NPUModelRunner._allocate_int8_cache_tensor
    _allocate_sparse_c8_indexer_tensors = NPUModelRunner._allocate_sparse_c8_indexer_tensors
    _get_layer_kv_cache_specs = NPUModelRunner._get_layer_kv_cache_specs

    def __init__(self, groups: Sequence[Layers]) -> None:
        self.groups = groups
        self.device = torch.device("npu:0")
        self.vllm_config = SimpleNamespace(kv_transfer_config=None, quant_config=None)
        self.model_config = SimpleNamespace(hf_text_config=SimpleNamespace(index_head_dim=128))
        first = groups[0][0][1]
        self.use_compress = getattr(first, "model_version", None) == "deepseek_v4"
        self.use_sparse = getattr(first, "sparse_head_dim", None) is not None
        self.use_hybrid_blocks = len(groups) > 1
        self.attn_backend = groups[0][0][2]

    def _get_attention_kv_cache_dims(self, layer: str, spec: Any) -> tuple[int, int]:
        if isinstance(spec, AscendMLAAttentionSpec):
            return 512, 64
        return spec.head_size, getattr(spec, "head_size_v", spec.head_size)

    def _kv_cache_spec_attn_group_iterator(self) -> Iterator[SimpleNamespace]:
        for group in self.groups:
            for name, spec, backend in group:
                yield SimpleNamespace(backend=backend, kv_cache_spec=spec, layer_names=[name])


def stock_caches(
    groups: Sequence[Layers], sharers: Sequence[Sequence[str]]
) -> tuple[dict[str, Any], int]:
    """vllm-ascend's caches and the bytes of its budget; ``sharers``: the layers of each tensor."""
    runner = StandInRunner(groups)
    specs = {name: spec for group in groups for name, spec, _ in group}
    group_specs = []
    for group in groups:
        of_group = {name: spec for name, spec, _ in group}
        first = group[0][1]
        whole = first
        if len(set(of_group.values())) > 1:
            whole = UniformTypeKVCacheSpecs(block_size=first.block_size, kv_cache_specs=of_group)
        group_specs.append(KVCacheGroupSpec([*of_group], whole))
    raw = [
        hosts.kv_cache_tensor(specs[names[0]].page_size_bytes * NUM_BLOCKS, list(names))
        for names in sharers
    ]
    config = KVCacheConfig(NUM_BLOCKS, raw, group_specs)
    allocated = NPUModelRunner._allocate_kv_cache_tensors(runner, config)
    caches = NPUModelRunner._reshape_kv_cache_tensors(runner, config, allocated)
    return caches, sum(tensor.size for tensor in raw)
