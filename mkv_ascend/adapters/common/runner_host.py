# SPDX-License-Identifier: Apache-2.0
"""What differs between hosts in model runner V1, and records of what ours replaces on all hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mkv_ascend.adapters.patching import record

if TYPE_CHECKING:
    import torch
    from vllm.config import VllmConfig

    from mkv_ascend.adapters.common.drafting.host import DraftHost


# What differs between hosts in model runner V1. The adapter of a host gives it.


class DraftWeights(Protocol):
    """The host's module of that name."""

    def aim(self, worker: Any) -> None:
        """The next update of weights is for the target."""

    def aim_at_draft(self, worker: Any, proposer: Any) -> None:
        """The next update of weights is for what drafts, or says why it cannot be."""

    def finishing(self, worker: Any) -> AbstractContextManager[None]:
        """An update of weights ends in the block."""


@dataclass(frozen=True, kw_only=True)
class RunnerHost:
    """The parts of model runner V1 that one host has in its own way.

    Attributes:
        drafts: what it does in its own way where drafts are run.
        why_not_planned: what leaves caches to vllm-ascend, from vLLM's configuration and specs by
            KV group and layer; None where they are planned.
        planned_specs: the spec of every layer with a cache, with the facts that planning needs
            besides; from the runner and vllm-ascend's own method.
        limit_the_targets_pass: calls the runner's ``limit_the_targets_pass`` with what its block
            tables hold.
        least_drafts: how many drafts a builder of recurrent layers must see in a row that has none,
            but whose states stand where a verification left them.
        loaded: is called with the configuration and the device once the models are loaded.
        graphs_sleep: whether sleep mode drops captured graphs, to capture them anew at its end.
        draft_weights: chooses what new weights are for; None where a draft is given none.
        memory_of_caches: in its block caches are allocated, and nothing else: sleep mode forgets
            what is allocated there.
    """

    drafts: DraftHost
    why_not_planned: Callable[[VllmConfig, Sequence[Mapping[str, Any]]], str | None]
    planned_specs: Callable[[Any, Callable[[], dict[str, Any]]], dict[str, Any]]
    limit_the_targets_pass: Callable[[Any], None]
    graphs_sleep: Callable[[], bool]
    least_drafts: int = 0
    loaded: Callable[[VllmConfig, torch.device], None] | None = None
    draft_weights: DraftWeights | None = None
    memory_of_caches: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext


# Records of the methods of vllm-ascend's model runner that ``runner.py`` replaces on all hosts.

TARGET_METADATA = record(
    name="the target's pass without the draft",
    target="vllm_ascend.worker.model_runner_v1:NPUModelRunner._build_attention_metadata",
    reads=("vllm_ascend.worker.model_runner_v1:NPUModelRunner._pad_query_start_loc_for_fia",),
)

PLANNED_CACHES = record(
    name="caches from a plan",
    target=(
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.get_kv_cache_spec",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._allocate_kv_cache_tensors",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._reshape_kv_cache_tensors",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache_tensors",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._init_kv_zero_meta",
        "vllm_ascend.worker.model_runner_v1:NPUModelRunner._update_states",
        "vllm.v1.worker.gpu_model_runner:GPUModelRunner."
        "maybe_add_kv_sharing_layers_to_kv_cache_groups",
    ),
    reads=("vllm_ascend.worker.model_runner_v1:NPUModelRunner.initialize_kv_cache",),
)
