# SPDX-License-Identifier: Apache-2.0
"""KV transfer: what registering the caches with a connector asks of a plan.

Connectors of vllm-ascend read each layer's tuple of tensors: addresses, bytes per block, and the
storage that a tensor belongs to. Plans give them what vllm-ascend's own allocation gives: an
allocation for each buffer, starting at a multiple of 2 MiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm.v1.kv_cache_interface import FullAttentionSpec, MambaSpec

from mkv_ascend.adapters.common.judge.facts_of_config import connector_names
from mkv_ascend.rules.kv_cache import SIMPLE_OFFLOAD, ConnectorError, of_states

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.kv_cache_interface import KVCacheGroupSpec

MOONCAKE = "MooncakeConnectorV1"
READING_EACH_TENSOR = frozenset({"RecomputeCPUOffloadConnector", "ExampleHiddenStatesConnector"})
"""Connectors that take any arrangement: they read each tensor by itself, or none of them."""


def check_groups(config: VllmConfig, groups: Sequence[KVCacheGroupSpec]) -> None:
    """Refuse connectors that would lose a part of the caches of these KV groups, or fail later.

    Raises:
        ConnectorError: MooncakeConnectorV1 with several groups of attention, or
            SimpleCPUOffloadConnector with states or without a group that it looks for.
    """
    connectors = connector_names(config)
    has_recurrent_groups = any(isinstance(group.kv_cache_spec, MambaSpec) for group in groups)
    plain = [isinstance(group.kv_cache_spec, FullAttentionSpec) for group in groups]
    if MOONCAKE in connectors and len(groups) > 1 and not has_recurrent_groups and not all(plain):
        raise ConnectorError(
            f"{MOONCAKE} was asked for, and the layers need {len(groups)} KV groups: it then "
            "registers one range for keys and values together, but they are allocations of their "
            "own, so values would be sent from memory that is not registered. Possible: one group "
            "(disable_hybrid_kv_cache_manager), or AscendStoreConnector"
        )
    if SIMPLE_OFFLOAD in connectors and has_recurrent_groups:
        raise ConnectorError(str(of_states()))
    if SIMPLE_OFFLOAD in connectors and not any(plain):
        raise ConnectorError(
            f"{SIMPLE_OFFLOAD} was asked for: it looks for a KV group of full attention whose "
            f"layers are all alike, and none of the {len(groups)} groups is. Possible: a draft "
            "with as many KV heads of the same size as the target, or RecomputeCPUOffloadConnector"
        )


def why_not_registered(config: VllmConfig, specs: Iterable[Any]) -> str | None:
    """Layers for which connectors rely on vllm-ascend's own arrangement; None without any."""
    if config.kv_transfer_config is None:
        return None
    names = connector_names(config)
    if names and names <= READING_EACH_TENSOR:
        return None
    for spec in specs:
        if isinstance(spec, MambaSpec) or getattr(spec, "model_version", None):
            return (
                f"KV transfer is on, and connectors count on vllm-ascend's arrangement of a "
                f"{type(spec).__name__}"
            )
    return None


def why_not_planned(config: VllmConfig, specs: Sequence[Mapping[str, Any]]) -> str | None:
    """What leaves the caches to vllm-ascend's own allocation; ``specs``: by group and layer."""
    reasons = (why_not_registered(config, group.values()) for group in specs)
    return next((reason for reason in reasons if reason is not None), None)
