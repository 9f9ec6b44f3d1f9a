# SPDX-License-Identifier: Apache-2.0
"""One engine of the drafting benchmark: counts what proposals cost, on command.

Started by ``benchmarks.drafting`` under the emulated NPU, with a scenario as JSON in its argument.
It reads a batch size per line from standard input and answers each with one line of JSON.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from mkv_ascend.adapters.contract import WORKER

PROMPT_TOKENS = 12
NEW_TOKENS = 6
"""Tokens each request generates in one measurement: a few steps make the batch steady."""


class Meter:
    """Launches, host reads and seconds between ``start`` and ``stop``, less what is ``paused``."""

    def __init__(self) -> None:
        from emulated_npu import counters

        self._snapshot = counters.snapshot
        self.launches = self.host_reads = 0
        self.seconds = 0.0
        self._since: tuple[Any, float] | None = None

    def start(self) -> None:
        """Count from here on. The snapshot itself is not timed."""
        snapshot = self._snapshot()
        self._since = snapshot, time.perf_counter()

    def stop(self) -> None:
        """Add what happened since ``start``."""
        now = time.perf_counter()
        assert self._since is not None
        before, then = self._since
        counts = self._snapshot() - before
        self.launches += counts.total_launches
        # A copy into pinned memory is waited for later: it is a read all the same.
        asynchronous = sum(times for times, _ in counts.asynchronous_reads.values())
        self.host_reads += counts.total_host_reads + asynchronous
        self.seconds += now - then
        self._since = None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        self.stop()
        try:
            yield
        finally:
            self.start()

    @contextlib.contextmanager
    def resumed(self) -> Iterator[None]:
        self.start()
        try:
            yield
        finally:
            self.stop()


class BuilderCalls:
    """How often metadata builders run; a builder that calls itself counts once."""

    NAMES = ("build", "build_for_drafting")

    def __init__(self) -> None:
        self.total = 0
        self._depth = 0

    def watch(self, groups: Any) -> None:
        """Count the calls of the builders of these attention groups."""
        for group in groups:
            builder = group.get_metadata_builder()
            for name in self.NAMES:
                if hasattr(builder, name):
                    setattr(builder, name, self._counted(getattr(builder, name)))

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def counted(*arguments: Any, **named: Any) -> Any:
            self.total += self._depth == 0
            self._depth += 1
            try:
                return function(*arguments, **named)
            finally:
                self._depth -= 1

        return counted


class Proposals:
    """What each proposal cost outside the draft's own work, by the size of its batch.

    Outside is everything from entering ``_propose`` to its return but the draft's passes
    (``_run_merged_draft``: forward, logits, sampling, feeding back). Ours makes the metadata of its
    later passes in there; that is counted. Stock advances positions in there; that is not.
    """

    def __init__(self, drafter: Any) -> None:
        self.costs: dict[int, list[dict[str, float]]] = {}
        self._meter: Meter | None = None
        if hasattr(drafter, "assembly"):
            drafter.assembly.proposal.run = self._our_passes(drafter.assembly.proposal.run)
        else:
            drafter._runnable = self._draft_itself(drafter._runnable)
        if hasattr(drafter, "_propose"):
            calls = BuilderCalls()
            calls.watch(drafter.draft_attn_groups)
            self._builds: Callable[[], int] = lambda: calls.total
            drafter._propose = self._measured(drafter._propose)
        else:  # model runner V2
            self._builds = lambda: drafter.assembly.proposal.needs.builds
            drafter.propose = self._measured(drafter.propose)

    def _measured(self, propose: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(propose)
        def measured(*arguments: Any, **named: Any) -> Any:
            meter = self._meter = Meter()
            builds = self._builds()
            meter.start()
            drafted = propose(*arguments, **named)
            meter.stop()
            self._meter = None
            cost = {
                "launches": meter.launches,
                "host_reads": meter.host_reads,
                "builds": self._builds() - builds,
                "host_us": meter.seconds * 1e6,
            }
            self.costs.setdefault(drafted.shape[0], []).append(cost)
            return drafted

        return measured

    def _draft_itself(self, run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def unmeasured(*arguments: Any, **named: Any) -> Any:
            if self._meter is None:  # a dummy run
                return run(*arguments, **named)
            with self._meter.paused():
                return run(*arguments, **named)

        return unmeasured

    def _our_passes(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``Proposal.run``, unmeasured except for the metadata of later passes."""

        def measured_metadata(later: Callable[[], Any]) -> Any:
            assert self._meter is not None
            with self._meter.resumed():
                return later()

        @functools.wraps(run)
        def with_measured_metadata(passes: Any) -> Any:
            later = functools.partial(measured_metadata, passes.later)
            return unmeasured(dataclasses.replace(passes, later=later))

        unmeasured = self._draft_itself(run)
        return with_measured_metadata


class TargetPasses:
    """Launches and builder calls with which the target's own metadata is prepared."""

    def __init__(self, runner: Any) -> None:
        self.costs: dict[int, list[tuple[int, int]]] = {}
        self._builds = BuilderCalls()
        for groups in runner.attn_groups:
            self._builds.watch(groups)
        self._slots = 0
        if hasattr(runner, "model_state"):  # model runner V2
            tables, state = runner.block_tables, runner.model_state
            tables.compute_slot_mappings = self._slot_launches(tables.compute_slot_mappings)
            state.prepare_attn = self._measured(state.prepare_attn, lambda batch: batch.num_reqs)
            return
        tables = runner.input_batch.block_table
        tables.compute_slot_mapping = self._slot_launches(tables.compute_slot_mapping)
        runner._build_attention_metadata = self._measured(
            runner._build_attention_metadata, lambda *_: runner.input_batch.num_reqs
        )

    def _slot_launches(self, compute: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compute)
        def counted(*arguments: Any, **named: Any) -> Any:
            meter = Meter()
            with meter.resumed():
                result = compute(*arguments, **named)
            self._slots = meter.launches
            return result

        return counted

    def _measured(
        self, build: Callable[..., Any], requests_of: Callable[..., int]
    ) -> Callable[..., Any]:
        @functools.wraps(build)
        def measured(*arguments: Any, **named: Any) -> Any:
            meter, builds = Meter(), self._builds.total
            with meter.resumed():
                result = build(*arguments, **named)
            requests = requests_of(*arguments[:1])
            cost = meter.launches + self._slots, self._builds.total - builds
            self.costs.setdefault(requests, []).append(cost)
            return result

        return measured


def drafter_of(runner: Any) -> Any:
    """What drafts, in either model runner."""
    return getattr(runner, "speculator", None) or runner.drafter


def spread_over_groups(worker: Any, groups: int) -> None:
    """Give the draft's layers windows of ``groups - 1`` lengths: they need that many groups.

    The models are random, and nothing here depends on what they say. Called after the draft was
    loaded and before its layers are asked for their specs.
    """
    from vllm.config import get_layers_from_vllm_config
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

    runner = worker.model_runner
    drafted = drafter_of(runner)._draft_attn_layer_names
    layers = get_layers_from_vllm_config(runner.vllm_config, AttentionLayerBase)
    mine = [layers[name] for name in layers if name in drafted]
    for index, layer in enumerate(mine):
        if index % groups:
            layer.sliding_window = 64 * (index % groups)
            layer.impl.sliding_window = layer.sliding_window - 1


def start(scenario: dict[str, Any]) -> Any:
    """The engine of one scenario: ``k`` tokens (0: no draft), a draft of ``g`` KV groups."""
    from vllm import LLM

    if scenario["k"] and scenario["g"] > 1:
        _spread_when_loaded(scenario["g"])
    arguments: dict[str, Any] = {
        "model": scenario["target"],
        "skip_tokenizer_init": True,
        "enforce_eager": True,
        "dtype": "bfloat16",
        "max_model_len": 512,
        "max_num_seqs": 64,
        "max_num_batched_tokens": 2048,
        "kv_cache_memory_bytes": 256 << 20,
        "enable_prefix_caching": False,
        "async_scheduling": False,
    }
    if scenario["k"]:
        arguments["speculative_config"] = {
            "method": "draft_model",
            "model": scenario["draft"],
            "num_speculative_tokens": scenario["k"],
        }
    return LLM(**arguments)


def _spread_when_loaded(groups: int) -> None:
    from vllm.utils.import_utils import resolve_obj_by_qualname

    worker_class = resolve_obj_by_qualname(WORKER)
    load = worker_class.load_model

    def load_and_spread(self: Any, *arguments: Any, **named: Any) -> Any:
        result = load(self, *arguments, **named)
        spread_over_groups(self, groups)
        return result

    worker_class.load_model = load_and_spread


def generate(llm: Any, batch: int, new_tokens: int) -> None:
    """Run ``batch`` requests of equal length to their end, ``new_tokens`` each."""
    from vllm import SamplingParams

    prompts = [
        {"prompt_token_ids": [3 + (7 * request + token) % 250 for token in range(PROMPT_TOKENS)]}
        for request in range(batch)
    ]
    sampling = SamplingParams(
        temperature=0.0, max_tokens=new_tokens, ignore_eos=True, detokenize=False
    )
    llm.generate(prompts, sampling, use_tqdm=False)


def middle(costs: list[dict[str, float]]) -> dict[str, float]:
    """The median of each cost; the first proposal of a batch, of its prompts, is left out."""
    settled = costs[1:]
    return {name: statistics.median(cost[name] for cost in settled) for name in settled[0]}


def answer(proposals: Proposals | None, target: TargetPasses, batch: int) -> dict[str, Any]:
    """What was measured for batches of this size since the last answer."""
    passes = target.costs.pop(batch)[1:]
    found: dict[str, Any] = {
        "target_launches": statistics.median(launches for launches, _ in passes),
        "target_builds": statistics.median(builds for _, builds in passes),
    }
    target.costs.clear()
    if proposals is not None:
        found |= middle(proposals.costs.pop(batch))
        proposals.costs.clear()
    return found


def main(scenario: dict[str, Any]) -> None:
    """Serve measurements until standard input ends. Answers go to the standard output we were
    started with; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    llm = start(scenario)
    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    target = TargetPasses(runner)
    drafter = drafter_of(runner) if scenario["k"] else None
    proposals = None if drafter is None else Proposals(drafter)
    facts: dict[str, Any] = {}
    if drafter is not None and hasattr(drafter, "assembly"):
        facts["groups"] = len(drafter.assembly.draft.groups.kv_groups)
        facts["distinct"] = len(drafter.assembly.proposal.needs.distinct)
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        batch = int(line)
        generate(llm, batch, NEW_TOKENS)
        print(json.dumps(answer(proposals, target, batch)), file=answers, flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
