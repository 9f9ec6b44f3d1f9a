# SPDX-License-Identifier: Apache-2.0
"""KV transfer: what registering the caches with a connector asks of a plan.

Connectors of vllm-ascend read each layer's tuple of tensors: addresses, bytes per block, and the
storage that a tensor belongs to. Plans give them what vllm-ascend's own allocation gives: an
allocation for each buffer, starting at a multiple of 2 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from mkv_ascend.layout.component import LayerLayout
from mkv_ascend.layout.plan import TRANSFER_ALIGNMENT
from mkv_ascend.layout.pooling import make_pools
from mkv_ascend.plugin.kv_connectors import ConnectorError, connector_names

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

ONE_RANGE_PER_TENSOR = "MooncakeConnectorV1"


def check_groups(config: VllmConfig, groups: Sequence[KVCacheGroupSpec]) -> None:
    """Refuse connectors that would register too little memory for these KV groups.

    Raises:
        ConnectorError: vllm-ascend's MooncakeConnectorV1 is asked for and there are several groups.
    """
    if ONE_RANGE_PER_TENSOR not in connector_names(config) or len(groups) < 2:
        return
    if all(isinstance(group.kv_cache_spec, FullAttentionSpec) for group in groups):
        return  # registered tensor by tensor
    if any(isinstance(group.kv_cache_spec, MambaSpec) for group in groups):
        return  # keys and values lie in one buffer with the states
    raise ConnectorError(
        f"{ONE_RANGE_PER_TENSOR} was asked for, and the layers need {len(groups)} KV groups: it "
        "then registers one range for keys and values together, but they are allocations of their "
        "own, so values would be sent from memory that is not registered. Possible: one group "
        "(disable_hybrid_kv_cache_manager), or AscendStoreConnector"
    )


def why_not_registered(config: VllmConfig, specs: Iterable[Any]) -> str | None:
    """Layers for which connectors rely on vllm-ascend's own arrangement; None without any."""
    if config.kv_transfer_config is None:
        return None
    for spec in specs:
        if isinstance(spec, MambaSpec) or getattr(spec, "model_version", None):
            return (
                f"KV transfer is on, and connectors count on vllm-ascend's arrangement of a "
                f"{type(spec).__name__}"
            )
    return None


def alignment_bytes(config: VllmConfig, groups: Sequence[Sequence[LayerLayout]]) -> int:
    """The most bytes that aligning the buffers of these KV groups' layers can take.

    vllm-ascend adds as many and counts them nowhere.
    """
    if config.kv_transfer_config is None:
        return 0
    return TRANSFER_ALIGNMENT * sum(len(pool.buffers) for pool in make_pools(groups))
