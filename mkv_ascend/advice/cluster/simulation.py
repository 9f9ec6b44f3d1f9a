# SPDX-License-Identifier: Apache-2.0
"""A cluster of engines under a load, as events of simpy.

Requests arrive, are given to an engine, and wait there (``scheduling.py``); a step takes as long as
is predicted (``step_time.py``). With prefill and decode apart, the caches of a prompt cross a link
between the two. Steps that are alike are one event: their time is that of the middle one, and an
arrival ends them at the next step.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import simpy

from mkv_ascend.advice.cluster.scheduling import Limits, Scheduler, Sequence, Step
from mkv_ascend.advice.cluster.traffic import Request
from mkv_ascend.advice.work import Part

__all__ = ["Cluster", "Link", "Served", "Yields", "simulate"]

MOST_ALIKE = 64
"""Steps that are one event, at most: the context grows meanwhile."""

Events = Generator[simpy.Event, Any, None]


class Times(Protocol):
    """How long a step takes; ``step_time.StepTime`` has it."""

    def seconds(self, decoding: int, context: float, prompts: list[Part]) -> float:
        """Of so many requests that decode behind so much context, and parts of prompts."""


class Yields(Protocol):
    """What verify steps give, drawn; ``draw_yields`` makes it."""

    def __call__(self, output: int) -> Any:
        """Tokens of the verify steps of an answer, summed up step by step."""


@dataclass(frozen=True)
class Link:
    """From an engine that reads prompts to those that decode; one transfer at a time.

    ``token_bytes``: keys and values of one token on one rank, each of which has a link.
    """

    token_bytes: float
    bytes_per_second: float

    def seconds(self, tokens: int) -> float:
        """Of the caches of so many tokens."""
        return tokens * self.token_bytes / self.bytes_per_second


@dataclass(frozen=True)
class Cluster:
    """``engines`` that do both; or with ``link`` the first ``prefill`` of them only read prompts.

    ``route``: ``round_robin``, or ``least_requests``, to one with the fewest unfinished requests.
    """

    engines: int
    limits: Limits
    prefill: int = 0
    link: Link | None = None
    route: str = "round_robin"


@dataclass
class Served:
    """Seconds by request, in order of arrival; -1: refused, since no engine could hold it."""

    arrival: np.ndarray
    first: np.ndarray
    """When its first token was there."""
    finish: np.ndarray
    output: np.ndarray
    preemptions: int = 0
    busy: float = 0.0
    """Seconds that engines computed, of all engines."""
    decoded: int = 0
    """Rows of requests in steps that decode."""
    steps: int = 0
    refused: int = 0


def draw_yields(acceptance: float, tokens: int, seed: int) -> Yields | None:
    """Each draft token is accepted with this chance if all before it were; None without drafts."""
    if not tokens:
        return None
    random = np.random.default_rng(seed)
    # Of a step; as many are drawn at once as a request seldom needs.
    mean = sum(acceptance**count for count in range(tokens + 1))

    def drawn(output: int) -> list[int]:
        left, last = output - 1, 0
        found: list[int] = []
        while not found or last < left:
            steps = int((left - last) / mean * 1.2) + 4
            given = np.full(steps, 1 + tokens)
            if acceptance < 1.0:
                # The first that is not accepted, counted from 1, gives its own token.
                given = np.minimum(random.geometric(1.0 - acceptance, steps), 1 + tokens)
            found += (last + np.cumsum(given)).tolist()
            last = found[-1]
        return found[: bisect_left(found, left) + 1]

    return drawn


def simulate(
    cluster: Cluster,
    requests: Iterable[Request],
    times: Times,
    yields: Yields | None = None,
    progress: Callable[[int, float], None] | None = None,
) -> Served:
    """Serve all requests to their ends.

    Args:
        requests: in order of arrival.
        yields: what verify steps give; None without drafts.
        progress: called after each request with how many ended and the simulated time.
    """
    environment = simpy.Environment()
    journal = _Journal(progress)
    first = cluster.prefill or cluster.engines
    deciding = _Pool(environment, cluster, range(first), times, journal)
    after = None
    if cluster.prefill:
        rest = range(cluster.prefill, cluster.engines)
        after = _Pool(environment, cluster, rest, times, journal)
    environment.process(_arrivals(environment, requests, deciding, after, yields, journal))
    environment.run()
    return journal.served()


@dataclass(eq=False)
class _Journal:
    """What happened to whom."""

    progress: Callable[[int, float], None] | None
    arrival: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    finish: list[float] = field(default_factory=list)
    output: list[int] = field(default_factory=list)
    preemptions: int = 0
    busy: float = 0.0
    decoded: int = 0
    steps: int = 0
    refused: int = 0
    ended: int = 0

    def arrived(self, now: float, request: Request) -> int:
        self.arrival.append(now)
        self.first.append(-1.0)
        self.finish.append(-1.0)
        self.output.append(request.output_tokens)
        return len(self.arrival) - 1

    def finished(self, index: int, now: float) -> None:
        self.finish[index] = now
        self.ended += 1
        if self.progress is not None:
            self.progress(self.ended, now)

    def served(self) -> Served:
        return Served(
            np.array(self.arrival),
            np.array(self.first),
            np.array(self.finish),
            np.array(self.output),
            self.preemptions,
            self.busy,
            self.decoded,
            self.steps,
            self.refused,
        )


@dataclass(eq=False, slots=True)
class _Ticket:
    """Whose sequence it is, and where it goes on once this pool is through with it."""

    index: int
    request: Request
    then: Callable[[_Ticket, Any], None] | None = None
    yields: Any = None


def _arrivals(
    environment: simpy.Environment,
    requests: Iterable[Request],
    pool: _Pool,
    after: _Pool | None,
    yields: Yields | None,
    journal: _Journal,
) -> Events:
    for request in requests:
        if request.arrival > environment.now:
            yield environment.timeout(request.arrival - environment.now)
        index = journal.arrived(environment.now, request)
        drawn = None if yields is None else yields(request.output_tokens)
        ticket = _Ticket(index, request, yields=drawn)
        output = request.output_tokens
        if after is not None and output > 1:
            ticket.then = after.take_over
            output, drawn = 1, None
        whole = Sequence(request.prompt_tokens, request.output_tokens)
        if not pool.fits(whole) or (after is not None and not after.fits(whole)):
            journal.refused += 1
            continue
        sequence = Sequence(
            request.prompt_tokens, output, drawn, request.prefix, request.prefix_tokens
        )
        pool.add(ticket, sequence)


class _Pool:
    """Engines that do the same."""

    def __init__(
        self,
        environment: simpy.Environment,
        cluster: Cluster,
        numbers: Iterable[int],
        times: Times,
        journal: _Journal,
    ) -> None:
        self._engines = [_Engine(environment, cluster, times, journal, self) for _ in numbers]
        self._turns = itertools.cycle(self._engines)
        self._by_load = [(0, number) for number in range(len(self._engines))]
        self._numbers = {id(engine): number for number, engine in enumerate(self._engines)}
        self._is_least = cluster.route == "least_requests"

    def fits(self, sequence: Sequence) -> bool:
        return self._engines[0].scheduler.fits(sequence)

    def add(self, ticket: _Ticket, sequence: Sequence) -> None:
        """Give it to an engine."""
        engine = self._least() if self._is_least else next(self._turns)
        engine.add(ticket, sequence)
        self.changed(engine)

    def take_over(self, ticket: _Ticket, _: Any = None) -> None:
        """Go on with a request whose prompt was read elsewhere."""
        request = ticket.request
        ticket.then = None
        sequence = Sequence(request.prompt_tokens, request.output_tokens, ticket.yields)
        sequence.computed = request.prompt_tokens
        sequence.add_first()
        self.add(ticket, sequence)

    def changed(self, engine: _Engine) -> None:
        """Its number of requests is another; entries with the old one are passed over."""
        if self._is_least:
            heapq.heappush(self._by_load, (len(engine.tickets), self._numbers[id(engine)]))

    def _least(self) -> _Engine:
        while True:
            load, number = heapq.heappop(self._by_load)
            if len(self._engines[number].tickets) == load:
                return self._engines[number]


class _Engine:
    """One engine: a process that computes steps while it has requests."""

    def __init__(
        self,
        environment: simpy.Environment,
        cluster: Cluster,
        times: Times,
        journal: _Journal,
        pool: _Pool,
    ) -> None:
        self.scheduler = Scheduler(cluster.limits)
        self.tickets: dict[int, _Ticket] = {}
        self._environment = environment
        self._times = times
        self._journal = journal
        self._pool = pool
        self._link = cluster.link
        self._wire = simpy.Resource(environment)
        self._waits: simpy.Event | None = None
        self._may_be_interrupted = False
        self._process = environment.process(self._run())

    def add(self, ticket: _Ticket, sequence: Sequence) -> None:
        self.tickets[id(sequence)] = ticket
        self.scheduler.add(sequence)
        if self._waits is not None:
            self._waits.succeed()
            self._waits = None
        elif self._may_be_interrupted:
            self._may_be_interrupted = False
            self._process.interrupt()

    def _run(self) -> Events:
        scheduler = self.scheduler
        while True:
            if not scheduler.running and not scheduler.waiting:
                self._waits = self._environment.event()
                yield self._waits
            steps = scheduler.alike(MOST_ALIKE)
            if steps > 1:
                yield from self._alike(steps)
                continue
            step = scheduler.schedule()
            self._journal.preemptions += len(step.preempted)
            seconds = self._seconds_of(step)
            self._journal.busy += seconds
            yield self._environment.timeout(seconds)
            self._after(step)

    def _alike(self, steps: int) -> Events:
        running = self.scheduler.running
        middle = sum(one.made_after(max(1, steps // 2)) + one.prompt for one in running)
        seconds = self._times.seconds(len(running), middle / len(running), [])
        begin = self._environment.now
        self._may_be_interrupted = True
        try:
            yield self._environment.timeout(steps * seconds)
            done = steps
        except simpy.Interrupt:
            done = min(steps, int((self._environment.now - begin) / seconds) + 1)
            yield self._environment.timeout(
                max(0.0, begin + done * seconds - self._environment.now)
            )
        self._may_be_interrupted = False
        self._journal.busy += done * seconds
        self._journal.steps += done
        self._journal.decoded += done * len(running)
        self._end(self.scheduler.advance(done))

    def _seconds_of(self, step: Step) -> float:
        decoding = [one for one, _ in step.scheduled if one.has_drafts]
        prompts = [
            Part(1, tokens, one.computed + tokens / 2)
            for one, tokens in step.scheduled
            if not one.has_drafts
        ]
        context = sum(one.tokens for one in decoding) / len(decoding) if decoding else 0.0
        self._journal.steps += 1
        self._journal.decoded += len(decoding)
        return self._times.seconds(len(decoding), context, prompts)

    def _after(self, step: Step) -> None:
        begun = [one for one, _ in step.scheduled if not one.has_drafts]
        finished = self.scheduler.complete(step)
        for sequence in begun:
            if sequence.has_drafts:
                index = self.tickets[id(sequence)].index
                if self._journal.first[index] < 0:
                    self._journal.first[index] = self._environment.now
        self._end(finished)

    def _end(self, finished: list[Sequence]) -> None:
        for sequence in finished:
            ticket = self.tickets.pop(id(sequence))
            if ticket.then is None:
                self._journal.finished(ticket.index, self._environment.now)
            else:
                self._environment.process(self._transfer(ticket))
        if finished:
            self._pool.changed(self)

    def _transfer(self, ticket: _Ticket) -> Events:
        """Move the caches; the link of this engine carries one request after the other."""
        assert ticket.then is not None
        with self._wire.request() as turn:
            yield turn
            if self._link is not None:
                yield self._environment.timeout(self._link.seconds(ticket.request.prompt_tokens))
        ticket.then(ticket, None)
