# SPDX-License-Identifier: Apache-2.0
"""Clusters: waiting as queueing theory has it where that is exact, and counts by plain loops."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from mkv_ascend.advice.cluster.scheduling import Limits, Scheduler, Sequence
from mkv_ascend.advice.cluster.simulation import Cluster, Link, Served, simulate
from mkv_ascend.advice.cluster.traffic import Request, Traffic, TrafficError, draw, read_trace
from mkv_ascend.advice.cluster.yields import DRAWN_AT_ONCE, draw_yields
from mkv_ascend.advice.work import Part

ROOMY = Limits(max_num_seqs=64, max_num_batched_tokens=4096, num_blocks=1 << 20)


@dataclass(frozen=True)
class Constant:
    """Steps that take as long whatever they hold."""

    step: float

    def seconds(self, decoding: int, context: float, prompts: list[Part]) -> float:
        return self.step


def arrivals(rate: float, count: int, output: int | None, seed: int = 1) -> list[Request]:
    """Poisson arrivals with one token of prompt; ``output`` None: geometric, of mean 100."""
    random = np.random.default_rng(seed)
    at = np.cumsum(random.exponential(1 / rate, count))
    lengths = random.geometric(1 / 100, count) if output is None else [output] * count
    return [Request(float(now), 1, int(length)) for now, length in zip(at, lengths, strict=True)]


def mean_and_error(values: np.ndarray) -> tuple[float, float]:
    """The mean, and three standard errors of it from means of 50 long batches."""
    batches = values[: len(values) // 50 * 50].reshape(50, -1).mean(axis=1)
    return float(values.mean()), 3 * float(batches.std(ddof=1)) / math.sqrt(50)


@pytest.mark.parametrize("load", [0.3, 0.7])
def test_one_engine_with_one_seat_waits_as_m_d_1(load: float) -> None:
    """Pollaczek and Khinchine: load / (2 (1 - load)) of a constant time of service."""
    service = 20 * 0.01
    served = simulate(
        Cluster(1, replace(ROOMY, max_num_seqs=1)),
        arrivals(load / service, 30_000, output=20),
        Constant(0.01),
    )
    waited, error = mean_and_error(served.finish - served.arrival - service)
    assert error < 0.15 * waited
    assert waited == pytest.approx(service * load / (2 * (1 - load)), abs=error)


@pytest.mark.parametrize("seats", [1, 4])
def test_seats_of_an_engine_wait_as_m_m_c(seats: int) -> None:
    """Erlang C, for answers of geometric lengths, whose steps are short beside them."""
    load, step = 0.7, 0.001
    service = 100 * step
    served = simulate(
        Cluster(1, replace(ROOMY, max_num_seqs=seats)),
        arrivals(load * seats / service, 30_000, output=None),
        Constant(step),
    )
    offered = load * seats
    busy = offered**seats / math.factorial(seats) / (1 - load)
    idle = sum(offered**k / math.factorial(k) for k in range(seats))
    expected = busy / (idle + busy) * service / (seats * (1 - load))
    waited, error = mean_and_error(served.first - step - served.arrival)
    # A request that finds a free seat waits for the end of the step that runs: half of one.
    assert error < 0.2 * expected
    assert waited == pytest.approx(expected, abs=error + step)


def plain_loop(requests: list[Request], limits: Limits, step: float) -> list[float]:
    """When each request ends on one engine, a step at a time; arrivals wait for a step's end."""
    scheduler, now, finish = Scheduler(limits), 0.0, {}
    waiting, names = list(requests), {}
    while waiting or scheduler.running or scheduler.waiting:
        if not scheduler.running and not scheduler.waiting:
            now = max(now, waiting[0].arrival)
        while waiting and waiting[0].arrival <= now:
            request = waiting.pop(0)
            sequence = Sequence(request.prompt_tokens, request.output_tokens)
            names[id(sequence)] = request.arrival
            scheduler.add(sequence)
        planned = scheduler.schedule()
        now += step
        for done in scheduler.complete(planned):
            finish[names[id(done)]] = now
    return [finish[request.arrival] for request in requests]


@pytest.mark.parametrize("blocks", [1 << 20, 40, 12])
def test_steps_that_are_one_event_end_as_single_ones(blocks: int) -> None:
    """With room, and where requests preempt each other."""
    traffic = Traffic(rate=3, requests=400, prompt_tokens=200, output_tokens=80, seed=3)
    limits = Limits(8, 512, blocks, block_size=128)
    requests = [one for one in draw(traffic) if one.prompt_tokens + one.output_tokens < 11 * 128]
    served = simulate(Cluster(1, limits), requests, Constant(0.01))
    assert served.finish == pytest.approx(plain_loop(requests, limits, 0.01))
    assert (served.preemptions > 0) == (blocks == 12)


def test_drafts_give_what_was_drawn() -> None:
    """Tokens of a step are one and all accepted: on average as geometric sums have it."""
    requests = [Request(float(at), 1, 4001) for at in range(50)]
    limits = replace(ROOMY, draft_tokens=3, lookahead=3)
    served = simulate(Cluster(1, limits), requests, Constant(1e-6), draw_yields(0.6, 3, seed=2))
    steps = (served.finish - served.first) / 1e-6
    assert 4000 / steps.mean() == pytest.approx(1 + 0.6 + 0.36 + 0.216, rel=0.01)
    assert draw_yields(0.6, 0, seed=2) is None
    always = draw_yields(1.0, 3, seed=2)
    assert always is not None
    assert list(always(10)) == [4, 8, 12]
    for drawn in (always, draw_yields(0.0, 3, seed=2), draw_yields(0.6, 15, seed=2)):
        # Enough for the whole answer, whatever is drawn.
        assert drawn is not None
        assert all(drawn(output)[-1] >= output - 1 for output in (1, 2, 10, 500) for _ in range(20))


def test_draws_are_those_of_one_step_after_the_other() -> None:
    """Of an answer with more steps than are drawn at once, and of the one behind it."""
    drawn = draw_yields(0.5, 3, seed=4)
    assert drawn is not None
    first, second = drawn(150_000), drawn(20)
    assert len(first) > DRAWN_AT_ONCE
    random = np.random.default_rng(4)
    one_by_one = [min(int(random.geometric(0.5)), 4) for _ in range(110_000)]
    assert first == np.cumsum(one_by_one[: len(first)]).tolist()
    # What was drawn for the first and not needed is not given to the second.
    asked = int(149_999 / 1.875 * 1.2) + 4
    assert asked > len(first)
    assert second == np.cumsum(one_by_one[asked : asked + len(second)]).tolist()


def test_prompts_cross_one_link_after_the_other() -> None:
    """Two prompts at once: the second decodes a transfer later."""
    cluster = Cluster(2, ROOMY, prefill=1, link=Link(token_bytes=1000, bytes_per_second=1e6))
    requests = [Request(0.0, 100, 11), Request(0.0, 100, 11)]
    served = simulate(cluster, requests, Constant(0.01))
    assert served.first == pytest.approx([0.01, 0.01])
    assert served.finish == pytest.approx([0.01 + 0.1 + 0.1, 0.01 + 0.2 + 0.1])


def test_a_prefix_is_read_once() -> None:
    """Of 300 tokens two blocks of 128 are shared: steps of 64 tokens count what is read."""
    limits = Limits(1, 64, 100, block_size=128)
    same = [Request(0.0, 300, 1, prefix=7, prefix_tokens=300) for _ in range(2)]
    other = [replace(one, prefix=None) for one in same]
    with_prefix = simulate(Cluster(1, limits), same, Constant(1.0))
    without = simulate(Cluster(1, limits), other, Constant(1.0))
    assert list(without.finish) == [5.0, 10.0]
    assert list(with_prefix.finish) == [5.0, 6.0]


def test_blocks_are_given_back() -> None:
    """Whatever was admitted, preempted or shared: at the end all blocks are free or a prefix's."""
    traffic = Traffic(4, 300, 150, 60, prefix_share=0.7, prefixes=3, prefix_tokens=256, seed=5)
    scheduler = Scheduler(Limits(8, 256, 24))
    for request in draw(traffic):
        scheduler.add(
            Sequence(
                request.prompt_tokens,
                request.output_tokens,
                prefix=request.prefix,
                prefix_tokens=request.prefix_tokens,
            )
        )
    scheduler.waiting = type(scheduler.waiting)(filter(scheduler.fits, scheduler.waiting))
    preempted = hits = 0
    while scheduler.running or scheduler.waiting:
        step = scheduler.schedule()
        assert step.scheduled, "it stands still"
        assert 0 <= scheduler.free <= 24
        preempted += len(step.preempted)
        hits += sum(bool(one.shared) and not one.has_drafts for one, _ in step.scheduled)
        scheduler.complete(step)
    assert preempted
    assert hits
    assert scheduler.free + 2 * len(scheduler._prefixes) == 24
    # Nobody reads a prefix any more, so one request can have all blocks.
    scheduler.add(Sequence(24 * 128, 1))
    while scheduler.running or scheduler.waiting:
        step = scheduler.schedule()
        assert step.scheduled, "it stands still"
        scheduler.complete(step)
    assert scheduler.free == 24


def loads(served: Served) -> tuple[float, float]:
    return float(served.first.mean()), float(served.finish.max())


def test_the_emptiest_engine_is_better_than_turns() -> None:
    traffic = Traffic(rate=40, requests=2000, prompt_tokens=100, output_tokens=100, seed=9)
    limits = replace(ROOMY, max_num_seqs=4)
    waits = {}
    for route in ("round_robin", "least_requests"):
        served = simulate(Cluster(12, limits, route=route), draw(traffic), Constant(0.01))
        assert served.refused == 0
        waits[route] = float((served.first - served.arrival).mean())
    assert waits["least_requests"] < waits["round_robin"]


def test_what_no_engine_can_hold_is_refused() -> None:
    served = simulate(
        Cluster(1, Limits(4, 512, 10)), [Request(0.0, 2000, 5), Request(0.0, 5, 5)], Constant(1.0)
    )
    assert served.refused == 1
    assert list(served.finish) == [-1.0, 5.0]


def test_traffic_is_what_was_asked_for_and_the_same_again() -> None:
    traffic = Traffic(5.0, 20_000, 300, 80, prefix_share=0.25, prefixes=4, prefix_tokens=512)
    found = list(draw(traffic))
    assert found == list(draw(traffic))
    assert found != list(draw(replace(traffic, seed=1)))
    assert all(one.arrival <= two.arrival for one, two in pairwise(found))
    assert found[-1].arrival == pytest.approx(20_000 / 5, rel=0.03)
    assert np.mean([one.output_tokens for one in found]) == pytest.approx(80, rel=0.03)
    shared = [one for one in found if one.prefix is not None]
    assert len(shared) / len(found) == pytest.approx(0.25, rel=0.05)
    assert {one.prefix for one in shared} == {0, 1, 2, 3}
    assert all(one.prompt_tokens > 512 for one in shared)


def test_a_trace_is_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"arrival": 2, "prompt_tokens": 3, "output_tokens": 4}\n\n'
        '{"arrival": 0.5, "prompt_tokens": 9, "output_tokens": 1, '
        '"prefix": 2, "prefix_tokens": 8}\n'
    )
    assert read_trace(path) == [Request(0.5, 9, 1, 2, 8), Request(2.0, 3, 4)]


@pytest.mark.parametrize(
    "line",
    [
        "",
        "x",
        "[]",
        '{"arrival": 0, "prompt_tokens": 3}',
        '{"arrival": -1, "prompt_tokens": 3, "output_tokens": 1}',
        '{"arrival": NaN, "prompt_tokens": 3, "output_tokens": 1}',
        '{"arrival": true, "prompt_tokens": 3, "output_tokens": 1}',
        '{"arrival": 0, "prompt_tokens": 0, "output_tokens": 1}',
        '{"arrival": 0, "prompt_tokens": 3, "output_tokens": 1.5}',
        '{"arrival": 0, "prompt_tokens": 3, "output_tokens": 1, "more": 1}',
        '{"arrival": 0, "prompt_tokens": 3, "output_tokens": 1, "prefix": 1, "prefix_tokens": 4}',
    ],
)
def test_a_file_that_is_no_trace_is_refused(line: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(line)
    with pytest.raises(TrafficError, match=r"line 1: |no request"):
        read_trace(path)
    with pytest.raises(TrafficError, match="nowhere"):
        read_trace(tmp_path / "nowhere")
