# SPDX-License-Identifier: Apache-2.0
"""Refuse a configuration before any worker starts, by every rule that needs no model.

Each layer is judged for itself when it is built. That is in a worker process, after seconds of
start-up and behind two tracebacks of vLLM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mkv_ascend.adapters.common.drafting.kinds_of_drafts import (
    has_recurrent_layers,
    switch_prefix_hits_off,
)
from mkv_ascend.adapters.common.judge.facts_of_config import facts_of
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.rules.refusal import RefusedError
from mkv_ascend.rules.table import refusals

if TYPE_CHECKING:
    from vllm.config import VllmConfig

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
