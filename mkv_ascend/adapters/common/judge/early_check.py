# SPDX-License-Identifier: Apache-2.0
"""Refuse a configuration before any worker starts, by every rule that needs no model.

Each layer is judged for itself when it is built. That is in a worker process, after seconds of
start-up and behind two tracebacks of vLLM.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from mkv_ascend.adapters.common.drafting.kinds_of_drafts import (
    has_recurrent_layers,
    switch_prefix_hits_off,
)
from mkv_ascend.adapters.common.judge.facts_of_config import facts_of
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.rules.refusal import RefusedError
from mkv_ascend.rules.verdict import refusals

if TYPE_CHECKING:
    from vllm.config import VllmConfig

PROCESSORS = "vllm.logits_processors"
"""Entry points with which an installed package brings logits processors."""

logger = get_logger(__name__)


def check(config: VllmConfig, backend: str | None = None) -> None:
    """Judge the configuration of an engine; a recurrent draft may take no prefix hits.

    Args:
        config: of the target.
        backend: as for ``facts_of``.

    Raises:
        RefusedError: with every refusal.
    """
    facts = facts_of(config, backend)
    if found := refusals(facts):
        raise RefusedError(found)
    recurrent = has_recurrent_layers(config)
    if recurrent and (cost := switch_prefix_hits_off(config, facts)) is not None:
        logger.warning(cost)


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


def say_what_is_left_out(config: VllmConfig) -> None:
    """Warn of logits processors of packages that are not called because there is a draft.

    Model runner V1 calls them in each step without drafts. Beside any speculation vLLM loads none,
    and says nothing; V2 refuses them itself. Those that a command names are refused
    (``rules/options.py``); a package may be there for another server, so it is only told.
    """
    if config.speculative_config is None or getattr(config, "use_v2_model_runner", False):
        return
    names = sorted(point.name for point in entry_points(group=PROCESSORS))
    if names:
        logger.warning(
            "Logits processors of installed packages are left out beside a draft: %s",
            ", ".join(names),
        )
