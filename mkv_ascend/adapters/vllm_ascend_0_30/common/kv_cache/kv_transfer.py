# SPDX-License-Identifier: Apache-2.0
"""KV connectors that fail with these KV groups, refused before caches are allocated."""

from __future__ import annotations

from collections.abc import Sized
from typing import TYPE_CHECKING

from mkv_ascend.adapters.common.judge.facts_of_config import connector_names
from mkv_ascend.rules.kv_cache import SIMPLE_OFFLOAD, ConnectorError, of_groups

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def check_groups(config: VllmConfig, groups: Sized) -> None:
    """Refuse a connector that cannot start with this many groups.

    vLLM's SimpleCPUOffloadScheduler asks the coordinator of its own blocks for
    ``group_block_sizes``. vllm-ascend's AscendHybridKVCacheCoordinator, which takes the place of
    vLLM's for several groups, has none (AttributeError).

    Raises:
        ConnectorError: SimpleCPUOffloadConnector with several groups.
    """
    if len(groups) > 1 and SIMPLE_OFFLOAD in connector_names(config):
        raise ConnectorError(str(of_groups(len(groups))))
