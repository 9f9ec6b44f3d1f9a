# SPDX-License-Identifier: Apache-2.0
"""vLLM's own grouping of layers (``common/explain/vllm_groups.py``), on this host."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from mkv_ascend.adapters.common.explain import vllm_groups
from mkv_ascend.adapters.questions import answer

__all__ = ["block_bytes", "complete", "group_by_vllm", "group_specs", "spec_of_mla"]


def spec_of_mla(fields: dict[str, Any], sparse: tuple[int, ...] | None) -> Any:
    """The spec of an MLA layer; ``sparse``: widths of its parts where it is sparse."""
    from vllm_ascend.core.kv_cache_interface import AscendMLAAttentionSpec

    return AscendMLAAttentionSpec(**fields, sparse_head_dim=sparse)


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


def group_by_vllm(question: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to ``mkv_ascend.commands.vllm_groups``."""
    return vllm_groups.group_by_vllm(question, sys.modules[__name__])


def group_specs(*args: Any) -> dict[str, Any]:
    """The same for vLLM's own specs; see the shared function."""
    return vllm_groups.group_specs(sys.modules[__name__], *args)


if __name__ == "__main__":
    answer(group_by_vllm)
