# SPDX-License-Identifier: Apache-2.0
"""Commands that are judged (``common/judge``), and vLLM's own grouping of layers, on this host."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from mkv_ascend.adapters.common.judge import building
from mkv_ascend.adapters.common.judge.answer import judge
from mkv_ascend.adapters.questions import answer


def complete(config: Any) -> None:
    """Add what vLLM 0.30.0 reads besides."""
    from vllm.v1.kv_cache_layout import KVCacheLayout

    # Our platform asks whose worker runs: where we built the models, it is asked here.
    config.use_v2_model_runner = False
    config.max_in_flight_tokens = config.scheduler_config.max_num_batched_tokens
    config.attention_config = SimpleNamespace(hisparse_config=None)
    # What engines resolve on an NPU: layers outside, blocks inside.
    config.cache_config.get_resolved_kv_cache_layout = lambda: KVCacheLayout.LBNHC
    config.cache_config.prefix_cache_retention_interval = None


def block_bytes(groups: list[Any]) -> tuple[int, int]:
    """Bytes of one block id as vLLM counts them, and those of all layers' own buffers for it."""
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    kept = 0
    for group in groups:
        spec = group.kv_cache_spec
        whole = isinstance(spec, UniformTypeKVCacheSpecs)
        kept += spec.page_size_bytes * (1 if whole else len(group.layer_names))
    return kv_cache_utils._pool_bytes_per_block(groups), kept


def group_specs(*args: Any) -> dict[str, Any]:
    """The same for vLLM's own specs; see the shared function."""
    return building.group_specs(sys.modules[__name__], *args)


def prepare_grouping(config: Any, specs: Mapping[str, Any]) -> None:
    """Resolve the arrangement of caches, as vLLM 0.30.0 does with all workers' backends."""
    from vllm.distributed.kv_transfer.kv_connector.utils import get_current_attn_backends
    from vllm.v1.attention.backends import utils

    found = utils.get_supported_kv_cache_layouts(get_current_attn_backends(config))
    utils.resolve_kv_cache_layout(config, [[layout.name for layout in found]], specs.values())


def judged(question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to ``mkv_ascend.commands.check``."""
    return judge(question, sys.modules[__name__])


if __name__ == "__main__":
    answer(judged)
