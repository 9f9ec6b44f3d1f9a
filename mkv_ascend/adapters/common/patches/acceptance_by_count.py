# SPDX-License-Identifier: Apache-2.0
"""Counts what was accepted by the number of draft tokens that a request verified.

vLLM counts acceptance by position alone. Where K follows the batch size, this does not tell what a
K was worth. The scheduler knows both numbers on the host. A worthless draft is named, once, and is
given up where ``drafting.give_up_below`` asks for it.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from mkv_ascend import metrics
from mkv_ascend.adapters.common import giving_up
from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.adapters.common.start_up import labels_of
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.adapters.patching import patch
from mkv_ascend.drafting.counts import DraftWorth, Worthless
from mkv_ascend.metrics import Store, folder
from mkv_ascend.rules.facts import LOOKED_UP

logger = get_logger(__name__)


class AcceptanceByNumber:
    """Verified proposals and accepted tokens by number of draft tokens, and by position.

    Also whether the draft is given up, which no proposal tells any more.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._verified: Counter[int] = Counter()
        self._accepted: Counter[tuple[int, int]] = Counter()
        store.set(metrics.DRAFT_GIVEN_UP, 0)

    def note(self, number: int, accepted: int) -> None:
        """Count one request's proposal of ``number`` draft tokens."""
        self._verified[number] += 1
        self._store.set(metrics.VERIFIED, self._verified[number], number)
        for position in range(accepted):
            self._accepted[number, position] += 1
            count = self._accepted[number, position]
            self._store.set(metrics.ACCEPTED, count, number, position)

    def give_up(self) -> None:
        """Note that the draft runs no more."""
        self._store.set(metrics.DRAFT_GIVEN_UP, 1)


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


@functools.cache
def _worth_going_on(model_name: str, engine: str, below: float) -> DraftWorth:
    return DraftWorth(least=below)


@patch(
    name="acceptance by number of draft tokens",
    target=(
        "vllm.v1.core.sched.scheduler:Scheduler.make_spec_decoding_stats",
        "vllm.v1.core.sched.scheduler:Scheduler._update_after_schedule",
        "vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids",
    ),
    reads=(
        "vllm.v1.core.sched.scheduler:Scheduler.schedule",
        "vllm.v1.core.sched.async_scheduler:AsyncScheduler._update_after_schedule",
    ),
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
    """As vLLM's, and judge the draft; metrics count where vLLM's do."""
    numbers = num_draft_tokens, num_accepted_tokens
    made = original(scheduler, stats, *numbers, num_invalid_spec_tokens, request_id)
    # As vLLM: tokens that a grammar forbids are not verified.
    number = num_draft_tokens - (num_invalid_spec_tokens or {}).get(request_id, 0)
    _judge(scheduler, number, num_accepted_tokens)
    if made is not None:
        acceptance = _acceptance(**labels_of(scheduler.vllm_config))
        if acceptance is not None:
            acceptance.note(number, num_accepted_tokens)
    return made


@count_by_number.also(target="vllm.v1.core.sched.scheduler:Scheduler._update_after_schedule")
def tell_workers(original: Callable[..., None], scheduler: Any, scheduled: Any) -> None:
    """As vLLM's; the step tells workers whether the draft is given up."""
    original(scheduler, scheduled)
    giving_up.tell(scheduler, scheduled)


@count_by_number.also(target="vllm.v1.core.sched.scheduler:Scheduler.update_draft_token_ids")
def take_no_drafts(original: Callable[..., None], scheduler: Any, drafts: Any) -> None:
    """As vLLM's, as long as the draft is not given up."""
    if not giving_up.drops_drafts(scheduler):
        original(scheduler, drafts)


def _judge(scheduler: Any, number: int, accepted: int) -> None:
    """Say once if the draft is worthless; give it up where that is asked for."""
    config = scheduler.vllm_config
    # Drafts that are looked up cost next to nothing, and may find nothing for long.
    if config.speculative_config.method in LOOKED_UP or giving_up.is_given_up(scheduler):
        return
    labels, below = labels_of(config), options_of(config).drafting.give_up_below
    _warn_of(_worth(**labels).note(number, accepted))
    if below is None:
        return
    found = _worth_going_on(**labels, below=below).note(number, accepted)
    if found is not None:
        give_up(scheduler, found, below)


def give_up(scheduler: Any, found: Worthless, below: float) -> None:
    """Let the draft of this scheduler's engine run no more; verify nothing, if graphs allow it."""
    giving_up.give_up(scheduler, found, below)
    if scheduler.log_stats and (acceptance := _acceptance(**labels_of(scheduler.vllm_config))):
        acceptance.give_up()
    if not giving_up.keeps_rows(scheduler):
        _take_rows(scheduler)


def _take_rows(scheduler: Any) -> None:
    """Schedule no draft tokens from now on. Steps that are under way keep theirs."""
    for request in scheduler.requests.values():
        request.spec_token_ids = []
    # With asynchronous scheduling each request is given these before its tokens are known. The list
    # itself is part of steps under way.
    scheduler._spec_token_placeholders = []
    if hasattr(scheduler, "dynamic_sd_lookup"):
        # vLLM 0.30.0 makes the list anew from K by batch size, and fills requests up to K + 1.
        requests = scheduler.vllm_config.scheduler_config.max_num_seqs
        scheduler.dynamic_sd_lookup = [0] * (requests + 1)


def _warn_of(found: Worthless | None) -> None:
    if found is not None:
        logger.warning(
            "The draft is worthless: of its last %d proposals (%d draft tokens) the target took %d "
            "tokens. Tokens of the target are right, but each step pays for the draft. Check "
            "that the draft's checkpoint is whole and made for this target (revision, vocabulary, "
            "adapter), or serve without --speculative-config. Said once.",
            *found,
        )
