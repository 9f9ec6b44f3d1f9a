# SPDX-License-Identifier: Apache-2.0
"""Runs an engine and prints, as JSON, the blocks that its requests hold after each scheduling.

One row for each request of each step: ``computed``, tokens computed before the step;
``in_flight``, those of them whose step is not over; ``scheduled``, tokens of the step; ``held``,
numbers of the blocks that the request holds in the draft's group; ``used`` and ``counted``, blocks
that the pool has given out, and those of all requests in all groups.
"""

import json
import os
import sys
from unittest import mock

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def held_blocks(manager, request):
    """Numbers of the blocks of a request that are not given back."""
    blocks = manager.req_to_blocks.get(request.request_id, ())
    return [number for number, block in enumerate(blocks) if not block.is_null]


def rows_of_step(scheduler, group, tokens):
    """A row for each request of a step with so many ``tokens`` of each."""
    coordinator = scheduler.kv_cache_manager.coordinator
    pool, managers = coordinator.block_pool, coordinator.single_type_managers
    used = pool.num_gpu_blocks - 1 - pool.get_num_free_blocks()
    counted = sum(
        len(held_blocks(manager, request))
        for manager in managers
        for request in scheduler.requests.values()
    )
    for name, scheduled in tokens.items():
        request = scheduler.requests[name]
        yield {
            "computed": request.num_computed_tokens - scheduled,
            "in_flight": request.num_in_flight_tokens - scheduled,
            "scheduled": scheduled,
            "held": held_blocks(managers[group], request),
            "used": used,
            "counted": counted,
        }


def main():
    from vllm.v1.core.sched.scheduler import Scheduler

    from tests.support.probed_engine import ProbedEngine

    engine, rows = ProbedEngine(json.loads(sys.argv[1])), []
    (group,) = {row["kv_group"] for row in engine.layers() if row["role"] == "draft"}
    own_schedule = Scheduler.schedule

    def schedule(scheduler, *args, **kwargs):
        output = own_schedule(scheduler, *args, **kwargs)
        rows.extend(rows_of_step(scheduler, group, output.num_scheduled_tokens))
        return output

    with mock.patch.object(Scheduler, "schedule", schedule):
        generated = engine.generate()
    print(json.dumps({**generated, "rows": rows}), flush=True)


if __name__ == "__main__":
    main()
