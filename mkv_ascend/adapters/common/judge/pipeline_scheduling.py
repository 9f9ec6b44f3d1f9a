# SPDX-License-Identifier: Apache-2.0
"""Drafts under pipeline parallelism are scheduled one step at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mkv_ascend.adapters.logging import get_logger

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = get_logger(__name__)


def serves_drafts_in_stages(config: VllmConfig) -> bool:
    """Whether there are drafts that several stages of model runner V1 verify, step after step."""
    return _has_drafts_in_stages(config) and not config.scheduler_config.async_scheduling


def _has_drafts_in_stages(config: VllmConfig) -> bool:
    return (
        config.speculative_config is not None
        and config.parallel_config.pipeline_parallel_size > 1
        and not config.use_v2_model_runner
    )


def must_go_step_by_step(config: VllmConfig) -> bool:
    """Whether asynchronous scheduling must be switched off, which is said then.

    vLLM switches it on by itself. Its model runner V1 sends first stages one sampled token for each
    request then, and no accepted drafts. Nodes that only prefill verify none.
    """
    if not _has_drafts_in_stages(config) or not config.scheduler_config.async_scheduling:
        return False
    transfer = config.kv_transfer_config
    if transfer is not None and transfer.kv_role == "kv_producer":
        return False
    logger.warning(
        "Asynchronous scheduling is off: with a draft over pipeline stages, a request's step is "
        "scheduled once its last one has ended. Other requests fill the stages."
    )
    return True
