# SPDX-License-Identifier: Apache-2.0
"""Runs an engine whose last request sits out each third step, whole and without what is restored.

A step leaves a request out when chunks of others take all of its tokens; here it is hidden from the
scheduler for the step, so that it happens often and everywhere. One request is preempted besides.
"""

import itertools
import json
import os
import sys
from unittest import mock

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
STEPS = 3


def main():
    from vllm.v1.core.sched.scheduler import Scheduler

    from mkv_ascend.adapters.common.batch_rows import SkippedRequests
    from tests.support.preemption import PreemptionForcer
    from tests.support.probed_engine import ProbedEngine

    steps, restored = itertools.count(), []
    own_schedule, own_restore = Scheduler.schedule, SkippedRequests.restore

    def schedule(scheduler, *args, **kwargs):
        hides = next(steps) % STEPS == 0 and len(scheduler.running) > 1
        hidden = [scheduler.running.pop()] if hides else []
        try:
            return own_schedule(scheduler, *args, **kwargs)
        finally:
            scheduler.running.extend(hidden)

    def restore(skipped, runner):
        back = skipped._accepted.keys() & runner.input_batch.req_id_to_index.keys()
        restored.extend(skipped._accepted[request] for request in back)
        own_restore(skipped, runner)

    engine = ProbedEngine(json.loads(sys.argv[1]))
    with mock.patch.object(Scheduler, "schedule", schedule):
        forcer = PreemptionForcer(engine.scheduler)
        with mock.patch.object(SkippedRequests, "restore", restore):
            whole = engine.generate()
        with mock.patch.object(SkippedRequests, "restore"):
            lost = engine.generate()
    answer = {"whole": whole, "lost": lost, "restored": restored}
    print(json.dumps({**answer, "preempted": len(forcer.contexts)}), flush=True)


if __name__ == "__main__":
    main()
