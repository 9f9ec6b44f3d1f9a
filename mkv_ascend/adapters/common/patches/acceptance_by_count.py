# SPDX-License-Identifier: Apache-2.0
"""Counts what was accepted by the number of draft tokens that a request verified.

vLLM counts acceptance by position alone. Where K follows the batch size, this does not tell what a
K was worth. The scheduler knows both numbers on the host. A worthless draft is named, once.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from mkv_ascend.adapters.common.start_up import labels_of
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import patch
from mkv_ascend.checks.facts import LOOKED_UP
from mkv_ascend.drafting.worth import DraftWorth, Worthless
from mkv_ascend.metrics import definitions as metrics
from mkv_ascend.metrics.store import Store, folder

logger = get_logger(__name__)


class AcceptanceByNumber:
    """Verified proposals and accepted tokens by number of draft tokens, and by position."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._verified: Counter[int] = Counter()
        self._accepted: Counter[tuple[int, int]] = Counter()

    def note(self, number: int, accepted: int) -> None:
        """Count one request's proposal of ``number`` draft tokens."""
        self._verified[number] += 1
        self._store.set(metrics.VERIFIED, self._verified[number], number)
        for position in range(accepted):
            self._accepted[number, position] += 1
            count = self._accepted[number, position]
            self._store.set(metrics.ACCEPTED, count, number, position)


@functools.cache
def _acceptance(model_name: str, engine: str) -> AcceptanceByNumber | None:
    where = folder()
    if where is None:
        return None
    labels = {"model_name": model_name, "engine": engine}
    return AcceptanceByNumber(Store(where, labels))


@functools.cache
def _worth(model_name: str, engine: str) -> DraftWorth:
    return DraftWorth()


@patch(
    name="acceptance by number of draft tokens",
    target="vllm.v1.core.sched.scheduler:Scheduler.make_spec_decoding_stats",
    why="vLLM's metrics tell acceptance by position alone, and nobody else on the host knows how "
    "many of which number of draft tokens were accepted, or says where next to none are.",
    until="vLLM counts acceptance by number of draft tokens",
    test="tests/emulated/platform/test_metrics.py",
)
def count_by_number(
    original: Callable[..., Any],
    scheduler: Any,
    stats: Any,
    num_draft_tokens: int,
    num_accepted_tokens: int,
    num_invalid_spec_tokens: Mapping[str, int] | None,
    request_id: str,
) -> Any:
    """As vLLM's, and count; nothing where vLLM counts nothing."""
    numbers = num_draft_tokens, num_accepted_tokens
    made = original(scheduler, stats, *numbers, num_invalid_spec_tokens, request_id)
    if made is None:
        return None
    labels = labels_of(scheduler.vllm_config)
    # As vLLM: tokens that a grammar forbids are not verified.
    number = num_draft_tokens - (num_invalid_spec_tokens or {}).get(request_id, 0)
    acceptance = _acceptance(**labels)
    if acceptance is not None:
        acceptance.note(number, num_accepted_tokens)
    # Drafts that are looked up cost next to nothing, and may find nothing for long.
    if scheduler.vllm_config.speculative_config.method not in LOOKED_UP:
        _warn_of(_worth(**labels).note(number, num_accepted_tokens))
    return made


def _warn_of(found: Worthless | None) -> None:
    if found is not None:
        logger.warning(
            "The draft is worthless: of its last %d proposals (%d draft tokens) the target took %d "
            "tokens. Tokens of the target are right, but each step pays for the draft. Check "
            "that the draft's checkpoint is whole and made for this target (revision, vocabulary, "
            "adapter), or serve without --speculative-config. Said once.",
            *found,
        )
