# SPDX-License-Identifier: Apache-2.0
"""One engine of the graphs benchmark: measures what proposals cost, on command.

Started by ``benchmarks.graphs`` under the emulated NPU, with a scenario as JSON in its argument.
It reads a batch size per line from standard input and answers each with one line of JSON.
"""

from __future__ import annotations

import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.drafting_engine import generate

NEW_TOKENS = 32
"""Tokens each request generates in one measurement: some steps in which the batch is whole."""

REPLAY = "NPUGraph.replay"
UPDATE = "graph_task_update"
EAGER = "eager"
"""In place of a mode of graphs."""


def split_launches(launches: Mapping[str, int]) -> dict[str, int]:
    """Launches of the host by what they are: replays, updates of captured launches, and others."""
    replays, updates = launches.get(REPLAY, 0), launches.get(UPDATE, 0)
    return {
        "replays": replays,
        "updates": updates,
        "launches_outside_graph": sum(launches.values()) - replays - updates,
    }


class DeviceWork:
    """Seconds in which the emulated device computed what a graph launches.

    The emulated device has no processor of its own. It computes in the thread that replays a graph,
    or that records an event for which a replay waits.
    """

    def __init__(self) -> None:
        from emulated_npu.device.replay import GraphRun

        self.seconds = 0.0
        GraphRun.advance = self._timed(GraphRun.advance)  # type: ignore[method-assign]

    def _timed(self, advance: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(advance)
        def timed(run: Any) -> Any:
            start = time.thread_time()
            try:
                return advance(run)
            finally:
                self.seconds += time.thread_time() - start

        return timed


class Proposals:
    """Launches and time of each proposal, from entering ``_propose`` to its return.

    Seconds are those that this thread had a core: other programs do not disturb them.
    """

    def __init__(self, drafter: Any) -> None:
        from emulated_npu import counters

        self.costs: dict[int, list[dict[str, float]]] = {}
        self._snapshot = counters.snapshot
        self._device = DeviceWork()
        drafter._propose = self._measured(drafter._propose)

    def _measured(self, propose: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(propose)
        def measured(*arguments: Any, **named: Any) -> Any:
            before = self._snapshot()
            device, start = self._device.seconds, time.thread_time()
            drafted = propose(*arguments, **named)
            seconds = time.thread_time() - start
            cost = {
                **split_launches((self._snapshot() - before).launches),
                "total_us": seconds * 1e6,
                "graph_us": (self._device.seconds - device) * 1e6,
            }
            self.costs.setdefault(drafted.shape[0], []).append(cost)
            return drafted

        return measured


def middle(costs: list[dict[str, float]]) -> dict[str, float]:
    """The median of each cost; the first proposal of a batch, of its prompts, is left out."""
    settled = costs[1:]
    return {name: statistics.median(cost[name] for cost in settled) for name in settled[0]}


def start(scenario: dict[str, Any]) -> Any:
    """The engine of one scenario: ``target``, ``draft``, ``method``, ``k``, ``mode``, and
    ``captured``, the numbers of requests to capture graphs for."""
    mode, k = scenario["mode"], scenario["k"]
    arguments: dict[str, Any] = {
        "model": scenario["target"],
        "skip_tokenizer_init": True,
        "enforce_eager": mode == EAGER,
        "dtype": "bfloat16",
        "max_model_len": 512,
        "max_num_seqs": max(scenario["captured"]),
        "max_num_batched_tokens": 512,
        "kv_cache_memory_bytes": 64 << 20,
        "enable_prefix_caching": False,
        "async_scheduling": False,
        "speculative_config": {
            "method": scenario["method"],
            "model": scenario["draft"],
            "num_speculative_tokens": k,
        },
    }
    if mode != EAGER:
        import torch._dynamo

        # The graphs are of the models as they are written: tracing them takes long.
        torch._dynamo.config.disable = True
        os.environ.update(TORCHDYNAMO_DISABLE="1", VLLM_USE_AOT_COMPILE="0")
        arguments["compilation_config"] = {
            "cudagraph_mode": mode,
            "cudagraph_capture_sizes": [requests * (k + 1) for requests in scenario["captured"]],
        }
    from vllm import LLM

    return LLM(**arguments)


def main(scenario: dict[str, Any]) -> None:
    """Serve measurements until standard input ends. Answers go to the standard output we were
    started with; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    llm = start(scenario)
    drafter = llm.llm_engine.model_executor.driver_worker.worker.model_runner.drafter
    proposals = Proposals(drafter)
    facts = {"groups": len(drafter.assembly.draft.groups.kv_groups)}
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        batch = int(line)
        generate(llm, batch, NEW_TOKENS)
        print(json.dumps(middle(proposals.costs[batch])), file=answers, flush=True)
        proposals.costs.clear()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
