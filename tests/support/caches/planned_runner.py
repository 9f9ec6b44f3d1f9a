# SPDX-License-Identifier: Apache-2.0
"""MkvModelRunner's own allocation, views and binding of caches, run on a stand-in for the runner.

The stand-in has what ``MkvModelRunner`` and vllm-ascend's ``initialize_kv_cache_tensors`` read, and
layers that hold nothing but what planning asks of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch

# Before anything else of vllm-ascend: its modules import each other in a circle.
import vllm_ascend.ops  # isort: skip
from vllm.model_executor.layers.attention import MLAAttention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.v1.kv_cache_interface import KVCacheConfig, MambaSpec
from vllm.v1.worker.utils import select_common_block_size
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec
from vllm_ascend.worker.model_runner_v1 import NPUModelRunner

from mkv_ascend.layout.component import ONE_BLOCK, PageShape
from tests.support import hosts

if hosts.NAME == "vllm_ascend_0_30":
    import vllm_ascend.patch.worker  # noqa: F401  As in a worker: it binds caches its own way.

specs_by_layer = hosts.module("kv_cache.kv_groups").specs_by_layer
MkvModelRunner = hosts.module("runner").MkvModelRunner

LATENT, ROPE = 512, 64


class PlainLayer(AttentionLayerBase):
    """Any layer but one of MLA."""

    impl = None

    def get_attn_backend(self) -> Any:
        raise NotImplementedError("planning asks no backend")

    def get_kv_cache_spec(self, vllm_config: Any) -> Any:
        raise NotImplementedError("planning asks no spec")


class LatentLayer(MLAAttention):
    """An MLA layer with the sizes of DeepSeek's, and no weights."""

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.kv_lora_rank, self.qk_rope_head_dim = LATENT, ROPE
        self.impl = SimpleNamespace()


class PlannedRunner:
    """Runs the methods under test with what they read of a runner.

    Args:
        config: KV groups, number of blocks, and the tensors whose bytes were counted.
        backends: backend by layer; None for layers with states.
        draft_layers: names of the draft's layers.
        model_type: of the target; vllm-ascend binds DeepSeek-V4's caches in a way of their own.
    """

    initialize_kv_cache_tensors = NPUModelRunner.initialize_kv_cache_tensors
    _reshape_kv_cache_tensors = MkvModelRunner._reshape_kv_cache_tensors
    _allocate_kv_cache_tensors = MkvModelRunner._allocate_kv_cache_tensors
    draft_layers = MkvModelRunner.draft_layers
    _strided: frozenset[str] = frozenset()
    runner_only_attn_layers: frozenset[str] = frozenset()
    enable_hamming_sparse = False
    device = torch.device("npu:0")

    def __init__(
        self,
        config: KVCacheConfig,
        backends: dict[str, Any],
        draft_layers: Sequence[str] = (),
        kv_transfer_config: Any = None,
        model_type: str = "any",
    ) -> None:
        specs = {
            name: spec
            for group in config.kv_cache_groups
            for name, spec in specs_by_layer(group).items()
        }
        self.config = config
        self.kv_caches: list[Any] = []
        self.shared_kv_cache_layers: dict[str, str] = {}
        self.layers = {
            name: LatentLayer() if type(spec) is AscendMLAAttentionSpec else PlainLayer()
            for name, spec in specs.items()
        }
        self.compilation_config = SimpleNamespace(static_forward_context=self.layers)
        self.model_config = SimpleNamespace(
            hf_text_config=SimpleNamespace(model_type=model_type, num_hidden_layers=1),
            dtype=torch.bfloat16,
            max_model_len=1024,
            use_mla=any(isinstance(layer, LatentLayer) for layer in self.layers.values()),
        )
        self.vllm_config = SimpleNamespace(
            additional_config=None,
            kv_transfer_config=kv_transfer_config,
            cache_config=SimpleNamespace(
                cache_dtype="auto",
                kv_offloading_size=None,
                hash_block_size=None,
                enable_prefix_caching=False,
                mamba_cache_mode="none",
            ),
            scheduler_config=SimpleNamespace(
                max_num_batched_tokens=2048, max_num_encoder_input_tokens=2048
            ),
            speculative_config=None,
            compilation_config=self.compilation_config,
            model_config=self.model_config,
        )
        self.drafter = SimpleNamespace(_draft_attn_layer_names=frozenset(draft_layers))
        self.kernel_block_sizes = hosts.kernel_block_sizes(
            [_kernel_block(group, specs, backends) for group in config.kv_cache_groups]
        )

    def _fill_c8_mxfp_v_scale_caches(self, caches: dict[str, Any]) -> None:
        """For a form of quantised caches that is not planned."""

    def caches(self) -> dict[str, Any]:
        """What every layer is bound to."""
        self.initialize_kv_cache_tensors(self.config)
        return {name: layer.kv_cache for name, layer in self.layers.items()}


def _kernel_block(group: Any, specs: dict[str, Any], backends: dict[str, Any]) -> int:
    """As ``may_reinitialize_input_batch`` chooses it."""
    if isinstance(specs[group.layer_names[0]], MambaSpec):
        return 0
    block_size = group.kv_cache_spec.block_size
    return select_common_block_size(block_size, [backends[name] for name in group.layer_names])


def aliases(
    caches: dict[str, Any], pages: int, shapes: Mapping[str, PageShape] | None = None
) -> list[tuple[str, int, str, int]]:
    """(layer, block, other layer, other block) where filling a block changes one of another page.

    ``shapes``: by layer, blocks in a page; one where nothing is said.
    """
    shapes = shapes or {}
    tensors = {
        name: [cache] if isinstance(cache, torch.Tensor) else list(cache)
        for name, cache in caches.items()
    }
    page, found = pages // 2, []
    for name, parts in tensors.items():
        shape = shapes.get(name, ONE_BLOCK)
        block = shape.ids(page, pages)[-1]
        for part in parts:
            _rows(part, block, pages * shape.blocks).fill_(1)
        for other, others in tensors.items():
            other_shape = shapes.get(other, ONE_BLOCK)
            own = set(other_shape.ids(page, pages))
            for part in others:
                blocks = pages * other_shape.blocks
                touched = part.cpu().view(torch.int8).reshape(blocks, -1).any(dim=1)
                hits = touched.nonzero().flatten().tolist()
                found += [(name, block, other, hit) for hit in hits if hit not in own]
        for part in parts:
            _rows(part, block, pages * shape.blocks).zero_()
    return found


def _rows(part: torch.Tensor, block: int, num_blocks: int) -> torch.Tensor:
    rows = part.shape[0] // num_blocks
    return part.view(torch.int8)[block * rows : (block + 1) * rows]
