# SPDX-License-Identifier: Apache-2.0
"""Requests at once by vllm-ascend 0.30.0rc2's own code, where each layer has a buffer of its own.

0.23.0 lets layers of several groups share the bytes of a block. 0.30.0rc2 gives each layer a buffer
of its own and offers vLLM so much less memory that all of them fit; only models with attention and
recurrent layers are left out of this. Runs on that host alone, beside ``benchmarks.stock_groups``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

from benchmarks.rows import MEMORY_GIB

PRIVATE_BUFFERS = ("0.30.0rc2",)
"""Versions of vllm-ascend that give each layer a buffer of its own."""


def complete(config: Any) -> None:
    """Add the fields that vLLM 0.30.0 reads more to what ``stock_groups.vllm_config`` has."""
    from vllm.v1.kv_cache_layout import KVCacheLayout

    config.attention_config = SimpleNamespace(hisparse_config=None)
    # What engines resolve on an NPU: layers outside, blocks inside.
    config.cache_config.get_resolved_kv_cache_layout = lambda: KVCacheLayout.LBNHC
    config.cache_config.num_gpu_blocks_override = None
    config.cache_config.prefix_cache_retention_interval = None


def requests_at_once(
    config: Any, specs: Mapping[str, Any], groups: Sequence[Any]
) -> dict[str, Any]:
    """What vLLM says it can serve at once with ``MEMORY_GIB`` for the caches of one device.

    Args:
        config: the few fields of vLLM's configuration that it reads; see ``complete``.
        specs: layer -> vLLM's spec.
        groups: vLLM's groups of these layers.

    Returns:
        ``requests`` of the configuration's length, a fraction; ``equal_groups``: the number of
        groups if each needs the same bytes for a block and they share none, else None.
    """
    from vllm.v1.core import kv_cache_utils
    from vllm_ascend.worker.model_runner_v1 import NPUModelRunner
    from vllm_ascend.worker.worker import NPUWorker

    memory = MEMORY_GIB * 2**30
    worker = SimpleNamespace(
        get_kv_cache_spec=lambda: dict(specs),
        vllm_config=config,
        model_config=SimpleNamespace(hf_text_config=SimpleNamespace(model_type="")),
        model_runner=SimpleNamespace(
            supports_standardized_shared_kv_backing=(
                NPUModelRunner.supports_standardized_shared_kv_backing
            ),
            use_sparse=False,
            use_compress=False,
        ),
    )
    offered = NPUWorker._scale_kv_cache_memory_for_multi_group(worker, memory)
    planned = kv_cache_utils.get_kv_cache_config_from_groups(config, groups, offered)
    requests = kv_cache_utils.get_max_concurrency_for_kv_cache_config(config, planned)
    blocks = {kv_cache_utils._pool_bytes_per_block([group]) for group in groups}
    equal = len(groups) if len(blocks) == 1 and offered < memory else None
    return {"requests": requests, "equal_groups": equal}
