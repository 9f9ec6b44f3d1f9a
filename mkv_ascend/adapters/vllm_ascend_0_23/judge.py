# SPDX-License-Identifier: Apache-2.0
"""Commands that are judged (``common/judge``), and vLLM's own grouping of layers, on this host."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from mkv_ascend.adapters.common.judge import building
from mkv_ascend.adapters.common.judge.answer import judge
from mkv_ascend.adapters.questions import answer


def complete(config: Any) -> None:
    """vLLM 0.23.0 reads nothing besides."""


def block_bytes(groups: list[Any]) -> tuple[int, int]:
    """Bytes of one block id, as ``get_kv_cache_config_from_groups`` shares memory out; twice."""
    from vllm.v1.kv_cache_interface import UniformTypeKVCacheSpecs

    if len(groups) == 1 and isinstance(groups[0].kv_cache_spec, UniformTypeKVCacheSpecs):
        size: int = groups[0].kv_cache_spec.page_size_bytes
        return size, size
    page: int = groups[0].kv_cache_spec.page_size_bytes
    size = page * max(len(group.layer_names) for group in groups)
    return size, size


def group_specs(*args: Any) -> dict[str, Any]:
    """The same for vLLM's own specs; see the shared function."""
    return building.group_specs(sys.modules[__name__], *args)


def prepare_grouping(config: Any, specs: Mapping[str, Any]) -> None:
    """Nothing: vLLM 0.23.0 knows one arrangement of caches."""


def judged(question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to ``mkv_ascend.commands.check``."""
    return judge(question, sys.modules[__name__])


if __name__ == "__main__":
    answer(judged)
