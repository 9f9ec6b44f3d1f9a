# SPDX-License-Identifier: Apache-2.0
"""Which KV connectors are asked for, and those that no caches on an Ascend NPU can serve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from vllm import envs as vllm_envs

from mkv_ascend import host_versions

if TYPE_CHECKING:
    from vllm.config import VllmConfig

    from mkv_ascend.checks.host_rules import HostRules

OFFLOADING = "OffloadingConnector"
SIMPLE_OFFLOAD = "SimpleCPUOffloadConnector"
USE_INSTEAD = (
    f"{SIMPLE_OFFLOAD} (with kv_offloading_size: the variable VLLM_USE_SIMPLE_KV_OFFLOAD=1)"
)


class ConnectorError(ValueError):
    """A KV connector that cannot take the caches: what was asked, why not, what is possible."""


def check_connectors(config: VllmConfig, rules: HostRules) -> None:
    """Refuse connectors that no model's caches on an Ascend NPU can serve.

    Args:
        config: vLLM's, of the whole engine.
        rules: whether this host has a worker of its own for OffloadingConnector.

    Raises:
        ConnectorError: OffloadingConnector is asked for, and the host has vLLM's worker alone.
    """
    if not rules.offloads_split_caches and OFFLOADING in connector_names(config):
        raise ConnectorError(
            f"{OFFLOADING} was asked for (by kv_transfer_config or kv_offloading_size): it takes "
            "one tensor per layer, and caches on an Ascend NPU are a tuple of tensors, for which "
            f"{host_versions.vllm_ascend()} has no handlers that can be imported. "
            f"Possible: {USE_INSTEAD}"
        )


def connector_names(config: VllmConfig) -> set[str]:
    """Names of vLLM's registry; classes of the user's own are not among them."""
    cache = config.cache_config
    names = set()
    if getattr(cache, "kv_offloading_size", None) is not None:
        # vLLM only writes this into kv_transfer_config after the platform was asked.
        is_native = cache.kv_offloading_backend == "native"
        if is_native and not vllm_envs.VLLM_USE_SIMPLE_KV_OFFLOAD:
            names.add(OFFLOADING)
    transfer = config.kv_transfer_config
    if transfer is not None:
        own = {
            "kv_connector": transfer.kv_connector,
            "kv_connector_module_path": transfer.kv_connector_module_path,
            "kv_connector_extra_config": transfer.kv_connector_extra_config,
        }
        names.update(_registered(own))
    return names


def _registered(connector: Mapping[str, Any]) -> Iterator[str]:
    """The name of one connector, and of those that a MultiConnector holds."""
    name = connector.get("kv_connector")
    if name is None or connector.get("kv_connector_module_path"):
        return
    yield name
    for child in (connector.get("kv_connector_extra_config") or {}).get("connectors", ()):
        yield from _registered(child)
