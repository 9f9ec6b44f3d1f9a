# SPDX-License-Identifier: Apache-2.0
"""Which rank ends where it fails: one whose answer is not read, or not before another one's."""

from types import SimpleNamespace

import pytest

from mkv_ascend.adapters.common import failed_ranks


def worker_of(rank, *, backend="mp", tensor=2, prefill=1, stages=1):
    parallel = SimpleNamespace(
        distributed_executor_backend=backend,
        tensor_parallel_size=tensor,
        prefill_context_parallel_size=prefill,
        world_size=tensor * prefill * stages,
    )
    return SimpleNamespace(rank=rank, parallel_config=parallel)


@pytest.mark.parametrize(
    ("worker", "starting", "ends"),
    [
        (worker_of(0), False, False),
        (worker_of(1), False, True),
        # The first rank of the last stage hands over the tokens; answers to a start are in order.
        (worker_of(2, stages=2), False, False),
        (worker_of(2, stages=2), True, True),
        (worker_of(0, stages=2), False, True),
        (worker_of(0, stages=2), True, False),
        (worker_of(1), True, True),
        # Ranks that share a prompt's tokens are of one stage.
        (worker_of(0, prefill=2), False, False),
        (worker_of(2, prefill=2), False, True),
        (worker_of(1, backend="ray"), True, False),
        (worker_of(1, backend="ray"), False, False),
    ],
)
def test_a_rank_ends_that_nobody_hears(worker, starting, ends, monkeypatch):
    monkeypatch.setattr(failed_ranks, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(failed_ranks.threading, "Thread", lambda **_: SimpleNamespace(start=int))
    expected = SystemExit if ends else MemoryError
    with pytest.raises(expected), failed_ranks.ending_unheard(worker, starting=starting):
        raise MemoryError
