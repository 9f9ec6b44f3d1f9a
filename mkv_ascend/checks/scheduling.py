# SPDX-License-Identifier: Apache-2.0
"""Whether vLLM schedules a step while the one before it runs (``--async-scheduling``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mkv_ascend.checks.facts import WITHOUT_CACHE
from mkv_ascend.checks.host_rules import HostRules

__all__ = ["NEVER_AHEAD", "is_scheduled_ahead", "note_of_waiting"]

NEVER_AHEAD = WITHOUT_CACHE - {"ngram_gpu"}
"""Methods that vLLM refuses beside ``--async-scheduling``."""


def is_scheduled_ahead(
    asked: bool | None, method: str | None, options: Mapping[str, Any], rules: HostRules
) -> bool:
    """As ``VllmConfig.__post_init__`` decides it.

    ``asked``: ``--async-scheduling``, None where it is left to vLLM. ``method``: of drafting, None
    without. ``options``: of ``--speculative-config``.
    """
    if asked is not None:
        return asked
    waits = method in NEVER_AHEAD | rules.in_turn_by_default
    return not waits and not options.get("disable_padded_drafter_batch")


def note_of_waiting(
    method: str | None,
    options: Mapping[str, Any],
    rules: HostRules,
    stages: int = 1,
    executor: str | None = None,
) -> list[str]:
    """That ``--async-scheduling`` would let steps be scheduled ahead that are not by default.

    ``stages``: of a pipeline, over which drafts are scheduled one after the other. ``executor``:
    ``--distributed-executor-backend``; not all take it.
    """
    takes_it = stages == 1 and executor in (None, "mp", "uni")
    padded = not options.get("disable_padded_drafter_batch")
    if not takes_it or not padded or method not in rules.in_turn_by_default:
        return []
    return [
        f"vLLM {rules.vllm} schedules steps of method {method} one after the other by default; "
        "--async-scheduling schedules each while the one before it runs"
    ]
