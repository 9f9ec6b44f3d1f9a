# SPDX-License-Identifier: Apache-2.0
"""Commands that are judged (``common/judge``), on this host."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from mkv_ascend.adapters.common.judge.answer import judge
from mkv_ascend.adapters.questions import answer
from mkv_ascend.adapters.vllm_ascend_0_30.judge.vllm_groups import group_specs

__all__ = ["group_specs", "judged", "prepare_grouping"]


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
