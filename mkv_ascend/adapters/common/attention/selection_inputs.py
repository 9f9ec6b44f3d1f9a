# SPDX-License-Identifier: Apache-2.0
"""What selection needs to know of this process: the options in force, and the environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch_npu
import vllm.envs as vllm_envs
from vllm_ascend.utils import get_ascend_device_type

from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.attention.entry import DeviceGeneration, Environment
from mkv_ascend.attention.selection import SelectionOptions
from mkv_ascend.layout.kind import Role

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def options(config: VllmConfig, role: Role) -> SelectionOptions:
    """Our options, and vLLM's own for the model of this role.

    Args:
        config: the configuration that the model is built with: vLLM keeps the draft's backend in
            the draft's own ``attention_config``.
    """
    asked = config.attention_config.backend
    name = None if asked is None else asked.name
    # vLLM 0.23 has no such option.
    by_kind = getattr(config.attention_config, "backend_per_kind", {})
    return SelectionOptions(
        attention=options_of(config).attention,
        vllm_target=name if role is Role.TARGET else None,
        vllm_draft=name if role is Role.DRAFT else None,
        vllm_by_kind=tuple((kind, backend.name) for kind, backend in by_kind.items()),
    )


def draft_window(config: VllmConfig) -> tuple[int | None, int]:
    """``drafting.window``, and the tokens of the longest request."""
    # The draft's own configuration may have a shorter maximum, behind which the target goes on.
    speculative = config.speculative_config
    target = None if speculative is None else speculative.target_model_config
    return options_of(config).drafting.window, (target or config.model_config).max_model_len


def environment(config: VllmConfig) -> Environment:
    """The device and the modes that backends have to work in."""
    generation = get_ascend_device_type().name.lstrip("_")
    graph_mode = config.compilation_config.cudagraph_mode
    return Environment(
        device_generation=DeviceGeneration(generation),
        batch_invariant=bool(vllm_envs.VLLM_BATCH_INVARIANT),
        acl_graphs=graph_mode is not None and graph_mode.has_full_cudagraphs(),
        # Only the emulated NPU has this: float32 where the operators document half precision.
        extra_dtypes=getattr(torch_npu, "emulated_extra_dtypes", frozenset()),
    )
