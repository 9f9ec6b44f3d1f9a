# SPDX-License-Identifier: Apache-2.0
"""KV caches in a worker: specs of MLA layers, memory in sleep mode, and slots of the target."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from vllm.model_executor.layers.attention import MLAAttention
from vllm_ascend.attention.utils import get_sfa_qsfa_packed_head_dim
from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec

from mkv_ascend.adapters.common.target_pass import AttentionGroups
from mkv_ascend.adapters.patching import patch, record
from mkv_ascend.ops.group_table import group_table
from mkv_ascend.ops.target_slots import TargetSlotsArguments, slot_table, target_slots

if TYPE_CHECKING:
    from vllm.config import VllmConfig


# The spec of an MLA layer from the layer itself.
#
# vllm-ascend's runner (0.23.0, ``get_kv_cache_spec``) asks the target's configuration whether
# layers have an indexer, and of what sizes, also for those of the draft.

SIZES_OF_THE_LAYER = record(
    name="specs of MLA layers",
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner.get_kv_cache_spec",
)


def corrected_specs(
    specs: Mapping[str, Any], layers: Mapping[str, Any], config: VllmConfig, replicas: int
) -> dict[str, Any]:
    """``specs``, those of MLA layers that do not fit their layer replaced.

    Args:
        replicas: how often a rank keeps the indexer's keys (``sfa_dcp_replicated_indexer_size``).
    """
    return {name: _corrected(spec, layers[name], config, replicas) for name, spec in specs.items()}


def _corrected(spec: Any, layer: Any, config: VllmConfig, replicas: int) -> Any:
    if type(spec) is not AscendMLAAttentionSpec or not isinstance(layer, MLAAttention):
        return spec
    if getattr(layer.impl, "fa_quant_layer", False):
        return spec
    sizes = _sizes(layer) if layer.use_sparse else None
    if spec.sparse_head_dim == sizes and spec.head_size == sum(sizes or (layer.head_size,)):
        return spec
    return _spec_of_layer(layer, sizes, config, replicas)


def _sizes(layer: Any) -> tuple[int, int, int]:
    """Elements per token of the latent, the rope and the indexer's key, as the backend packs them.

    A layer without an indexer reads another's choice of tokens.
    """
    implementation = layer.impl
    indexer = implementation.head_dim if implementation.has_indexer else 0
    latent, rope = layer.kv_lora_rank, layer.qk_rope_head_dim
    if implementation.enable_sparse_sfa_c8:
        return get_sfa_qsfa_packed_head_dim(latent, rope), 0, indexer
    return latent, rope, indexer


def _spec_of_layer(
    layer: Any, sizes: tuple[int, int, int] | None, config: VllmConfig, replicas: int
) -> AscendMLAAttentionSpec:
    own = layer.get_kv_cache_spec(config)
    common = {
        "block_size": own.block_size,
        "num_kv_heads": own.num_kv_heads,
        "dtype": own.dtype,
        "cache_dtype_str": own.cache_dtype_str,
    }
    if sizes is None:
        return AscendMLAAttentionSpec(head_size=own.head_size, **common)
    return AscendMLAAttentionSpec(
        head_size=sum(sizes),
        sparse_head_dim=sizes,
        cache_sparse_sfa_c8=layer.impl.enable_sparse_sfa_c8,
        cache_sparse_li_c8=layer.impl.enable_sparse_li_c8,
        sfa_dcp_replicated_indexer_size=replicas,
        **common,
    )


# Sleep mode takes the memory of caches away, and of nothing else that is made with them.

OF_CACHES = "kv_cache"
"""vllm-ascend's tag of memory whose content sleep mode forgets."""
Pool = Callable[[], AbstractContextManager[Any]]


class PoolOfCaches:
    """A pool that vllm-ascend opens for a block, and that is open only where caches are made."""

    def __init__(self) -> None:
        self._pool: Pool | None = None

    @contextlib.contextmanager
    def kept_closed(self, pool: Pool) -> Iterator[None]:
        """Open nothing yet; ``opened`` does so in the block."""
        self._pool = pool
        try:
            yield
        finally:
            self._pool = None

    def opened(self) -> AbstractContextManager[Any]:
        """What is allocated in the block comes from the pool, if one is kept closed."""
        return contextlib.nullcontext() if self._pool is None else self._pool()


POOL = PoolOfCaches()


@patch(
    name="sleep mode forgets caches alone",
    target="vllm_ascend.device_allocator.camem:CaMemAllocator.use_memory_pool",
    reads=("vllm_ascend.worker.worker:NPUWorker.initialize_from_config",),
)
def keep_the_pool_closed(
    original: Callable[..., AbstractContextManager[Any]], allocator: Any, tag: str | None = None
) -> AbstractContextManager[Any]:
    """As vllm-ascend's; the pool of caches opens where they are allocated."""
    pool = functools.partial(original, allocator, tag)
    return POOL.kept_closed(pool) if tag == OF_CACHES else pool()


# Slots of the target's pass in one launch, for the target's layers only.
#
# In the target's pass vllm-ascend 0.23.0 computes slots for every KV group, a kernel launch each.
# That includes the draft's groups, although the draft computes its own and nothing else reads
# them.


class TargetSlots:
    """Slots of the target's batch in all of its KV groups, in one launch.

    vllm-ascend launches a kernel for each KV group, even for those that only the draft uses.

    Args:
        tables: vllm-ascend's block tables of the KV groups with layers of the target.
        max_requests: largest number of requests of a batch.
    """

    def __init__(self, tables: Sequence[Any], max_requests: int) -> None:
        self._tables = [table.get_device_tensor() for table in tables]
        self._slots = [table.slot_mapping.gpu for table in tables]
        self._group_table = group_table(self._tables, [table.block_size for table in tables])
        self._slot_table = slot_table(self._slots)
        device = self._tables[0].device
        self._counts = torch.arange(max_requests + 1, dtype=torch.int32, device=device)

    def compute(
        self, num_reqs: int, query_start_loc: torch.Tensor, positions: torch.Tensor
    ) -> None:
        """Write the slots of a batch; the name and the order of arguments are vllm-ascend's."""
        arguments = TargetSlotsArguments(
            positions,
            query_start_loc,
            self._counts[num_reqs : num_reqs + 1],
            self._tables,
            self._group_table,
            self._slots,
            self._slot_table,
        )
        target_slots(arguments)


SLOTS = record(
    name="slots of the target in one launch",
    target="vllm_ascend.worker.block_table:MultiGroupBlockTable.compute_slot_mapping",
    reads=("vllm_ascend.worker.block_table:BlockTable.compute_slot_mapping",),
)


def slots_in_one_launch(
    tables: Any, groups: AttentionGroups, draft_layers: Collection[str], max_requests: int
) -> None:
    """Let one op compute the target's slots; ``tables`` is vllm-ascend's MultiGroupBlockTable."""
    used = [
        table
        for table, kv_group in zip(tables.block_tables, groups, strict=True)
        if not table.is_mamba_group
        and any(set(group.layer_names) - set(draft_layers) for group in kv_group)
    ]
    if used:
        tables.compute_slot_mapping = TargetSlots(used, max_requests).compute
