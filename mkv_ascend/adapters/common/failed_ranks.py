# SPDX-License-Identifier: Apache-2.0
"""A rank that fails ends its process where nobody waits for its answer.

Of several ranks vLLM's executor waits for one alone in a step, which hands over the tokens. Another
one that fails writes that to its log and waits for the next step: the ranks that are left wait for
it in a collective, and the engine for them. While an engine starts, the executor reads the answers
of all ranks, but the first one's first, and that one may wait in a collective, too. A process that
ends is noticed at once by the executor's own monitor, and then each request is told, or the start
ends.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

from mkv_ascend.adapters.logging import get_logger

logger = get_logger(__name__)

GRACE_SECONDS = 3.0
"""In which the rank that is heard may fail alike: its words then reach the engine, and not only
that a process has ended."""
MOST_SECONDS_TO_END = 5.0
"""Of an orderly end; communicators may wait for ranks that wait for this one."""


@contextlib.contextmanager
def ending_unheard(worker: Any, *, starting: bool = False) -> Iterator[None]:
    """End the process of a rank that fails inside, and that nobody hears.

    Args:
        worker: a worker of vllm-ascend.
        starting: whether the engine starts; else it takes a step.
    """
    try:
        yield
    except Exception as error:
        if (is_heard_at_start if starting else is_heard)(worker):
            raise
        logger.exception("rank %d has failed, and ends: nobody waits for its answer", worker.rank)
        time.sleep(GRACE_SECONDS)
        threading.Thread(target=_end_at_last, daemon=True).start()
        raise SystemExit(1) from error


def _end_at_last() -> None:
    time.sleep(MOST_SECONDS_TO_END)
    os._exit(1)


def is_heard(worker: Any) -> bool:
    """Whether the error of a step of this rank reaches the engine.

    Args:
        worker: a worker of vllm-ascend.
    """
    parallel = worker.parallel_config
    if _hears_every_rank(parallel):
        return True
    # As vLLM's MultiprocExecutor._get_output_rank: the first one of the last stage.
    of_a_stage = parallel.tensor_parallel_size * parallel.prefill_context_parallel_size
    return bool(worker.rank == parallel.world_size - of_a_stage)


def is_heard_at_start(worker: Any) -> bool:
    """Whether the error of this rank reaches an engine that starts: answers are read in order.

    Args:
        worker: a worker of vllm-ascend.
    """
    return bool(worker.rank == 0) or _hears_every_rank(worker.parallel_config)


def _hears_every_rank(parallel: Any) -> bool:
    """Whether one process is alone, or Ray has the ranks."""
    return bool(parallel.distributed_executor_backend != "mp")
