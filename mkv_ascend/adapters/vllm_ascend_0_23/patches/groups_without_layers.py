# SPDX-License-Identifier: Apache-2.0
"""KV groups of which a pipeline stage has no layer: on first stages, a draft's own.

All stages have all KV groups, because a request has a block table for each of them.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.attention.backend import AttentionBackend
from vllm.v1.worker.utils import AttentionGroup

from mkv_ascend.adapters.patching import patch


@patch(
    name="KV groups of other pipeline stages",
    target=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_attn_backend",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.may_reinitialize_input_batch",
    ),
    reads=("vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache",),
)
def give_each_an_attention_group(original: Any, runner: Any, config: Any) -> None:
    """As vllm-ascend's; a KV group without layers has an attention group without layers."""
    original(runner, config)
    for index, groups in enumerate(runner.attn_groups):
        if not groups:
            spec = config.kv_cache_groups[index].kv_cache_spec
            groups.append(AttentionGroup(AttentionBackend, [], spec, index))


@give_each_an_attention_group.also(
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner.may_reinitialize_input_batch"
)
def forget_those_without_layers(original: Any, runner: Any, config: Any, *args: Any) -> None:
    """As vllm-ascend's, which follows the question: no metadata is built for such groups."""
    for groups in runner.attn_groups:
        groups[:] = [group for group in groups if group.layer_names]
    original(runner, config, *args)
