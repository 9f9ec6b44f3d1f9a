# SPDX-License-Identifier: Apache-2.0
"""Stops a draft of which the target accepts too little (``drafting.give_up_below``).

The scheduler knows on the host what was accepted. So it decides, schedules no draft tokens from
then on, and tells the workers with each step, whose draft then runs no more. The draft's caches
miss what comes after that: it stays given up until the server is started again.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from vllm.config import CUDAGraphMode

from mkv_ascend.adapters.common.options import options_of
from mkv_ascend.adapters.logging import get_logger
from mkv_ascend.drafting.counts import Worthless

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = get_logger(__name__)

GIVEN_UP = "mkv_ascend_draft_is_given_up"
"""Attribute of a step's ``SchedulerOutput``, which goes to all workers."""

_schedulers: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those of this process whose draft is given up."""


def give_up(scheduler: Any, found: Worthless, below: float) -> None:
    """Tell workers from now on that the draft of this scheduler's engine is given up; say so."""
    _schedulers.add(scheduler)
    proposals, tokens, accepted = found
    logger.warning(
        "The draft is given up: of its last %d proposals (%d draft tokens) the target took %d "
        "tokens, %.1f %%, and drafting.give_up_below is %.1f %%. Requests go on without a draft "
        "until the server is started again. Said once.",
        proposals,
        tokens,
        accepted,
        100 * accepted / tokens,
        100 * below,
    )


def is_given_up(scheduler: Any) -> bool:
    """Whether the draft of this scheduler's engine is given up."""
    return scheduler in _schedulers


def keeps_rows(scheduler: Any) -> bool:
    """Whether steps still verify K tokens of each request, though nobody drafts them.

    In mode ``FULL_DECODE_ONLY`` there are graphs of such steps alone. A step of one token for each
    request would run eagerly.
    """
    mode = scheduler.vllm_config.compilation_config.cudagraph_mode
    return bool(
        mode.decode_mode() == CUDAGraphMode.FULL and mode.mixed_mode() == CUDAGraphMode.NONE
    )


def drops_drafts(scheduler: Any) -> bool:
    """Whether the scheduler takes no draft tokens of the workers any more."""
    return is_given_up(scheduler) and not keeps_rows(scheduler)


def tell(scheduler: Any, scheduled: Any) -> None:
    """Tell the workers with the step ``scheduled`` (``SchedulerOutput``)."""
    if is_given_up(scheduler):
        setattr(scheduled, GIVEN_UP, True)


def obey(assembly: Any, scheduled: Any) -> None:
    """Let the draft of a worker run no more once the step ``scheduled`` tells so."""
    if assembly is not None and getattr(scheduled, GIVEN_UP, False):
        assembly.give_up()


def refuse_for_other_proposals(method: str, config: VllmConfig) -> None:
    """Raise NotImplementedError if the option is given: only proposals of ours can be stopped."""
    if options_of(config).drafting.give_up_below is not None:
        raise NotImplementedError(
            "drafting.give_up_below stops drafts whose proposals mkv_ascend makes, and vllm-ascend "
            f"makes those of this pair (method {method}): leave the option out"
        )
