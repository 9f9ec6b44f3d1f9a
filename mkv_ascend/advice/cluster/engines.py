# SPDX-License-Identifier: Apache-2.0
"""Engines that compute steps, as events of simpy, and the pools that requests are given to.

Steps that are alike are one event: their time is that of the middle one, and an arrival ends them
at the next step.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, Protocol

import simpy

from mkv_ascend.advice.cluster.scheduling import Limits, Scheduler, Sequence, Step
from mkv_ascend.advice.cluster.traffic import Request
from mkv_ascend.advice.work import Part

__all__ = ["Cluster", "Events", "Journal", "Link", "Pool", "Ticket", "Times"]

MOST_ALIKE = 64
"""Steps that are one event, at most: the context grows meanwhile."""

Events = Generator[simpy.Event, Any, None]


class Times(Protocol):
    """How long a step takes; ``step_time.StepTime`` has it."""

    def seconds(self, decoding: int, context: float, prompts: list[Part]) -> float:
        """Of so many requests that decode behind so much context, and parts of prompts."""


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


@dataclass(eq=False)
class Journal:
    """What happened to whom: seconds by request in order of arrival, and counts of all engines."""

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
        """Note a request; returns its index."""
        self.arrival.append(now)
        self.first.append(-1.0)
        self.finish.append(-1.0)
        self.output.append(request.output_tokens)
        return len(self.arrival) - 1

    def finished(self, index: int, now: float) -> None:
        """Note that it has its last token."""
        self.finish[index] = now
        self.ended += 1
        if self.progress is not None:
            self.progress(self.ended, now)


@dataclass(eq=False, slots=True)
class Ticket:
    """Whose sequence it is, and where it goes on once this pool is through with it."""

    index: int
    request: Request
    then: Callable[[Ticket], None] | None = None
    yields: list[int] | None = None


class Pool:
    """Engines that do the same."""

    def __init__(
        self,
        environment: simpy.Environment,
        cluster: Cluster,
        engines: int,
        times: Times,
        journal: Journal,
    ) -> None:
        self._engines = [
            _Engine(environment, cluster, times, journal, self) for _ in range(engines)
        ]
        self._turns = itertools.cycle(self._engines)
        self._by_load = [(0, number) for number in range(engines)]
        self._numbers = {id(engine): number for number, engine in enumerate(self._engines)}
        self._is_least = cluster.route == "least_requests"

    def holds(self, tokens: int) -> bool:
        """Whether an engine has room for one request of so many tokens."""
        return self._engines[0].scheduler.holds(tokens)

    def add(self, ticket: Ticket, sequence: Sequence) -> None:
        """Give it to an engine."""
        engine = self._least() if self._is_least else next(self._turns)
        engine.add(ticket, sequence)
        self.changed(engine)

    def take_over(self, ticket: Ticket) -> None:
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


@dataclass(eq=False, slots=True)
class _Alike:
    """Steps that are one event: how many, and of how many seconds each."""

    steps: int
    seconds: float
    begin: float
    end: simpy.Event | None = None


class _Engine:
    """One engine: computes steps while it has requests.

    Each event calls what follows it. A process of simpy would read better, and takes longer: what
    cuts its steps short is one more event and an exception.
    """

    def __init__(
        self,
        environment: simpy.Environment,
        cluster: Cluster,
        times: Times,
        journal: Journal,
        pool: Pool,
    ) -> None:
        self.scheduler = Scheduler(cluster.limits)
        self.tickets: dict[int, Ticket] = {}
        self._environment = environment
        self._times = times
        self._journal = journal
        self._pool = pool
        self._link = cluster.link
        self._wire = simpy.Resource(environment)
        self._is_idle = True
        self._alike: _Alike | None = None
        """What runs, if an arrival is to end it."""

    def add(self, ticket: Ticket, sequence: Sequence) -> None:
        """Let a request wait here."""
        self.tickets[id(sequence)] = ticket
        self.scheduler.add(sequence)
        if self._is_idle:
            self._is_idle = False
            # Not at once: requests that arrive together are in one step.
            self._after(0.0, self._begin)
        elif self._alike is not None:
            alike, self._alike = self._alike, None
            self._cut_short(alike)

    def _after(
        self, seconds: float, follows: Callable[[simpy.Event], None], value: Any = None
    ) -> simpy.Event:
        """Call ``follows`` after so many seconds, with an event of this value."""
        event = self._environment.timeout(seconds, value)
        event.callbacks.append(follows)
        return event

    def _begin(self, _: simpy.Event | None = None) -> None:
        """The next step, or several that are alike."""
        scheduler = self.scheduler
        if not scheduler.running and not scheduler.waiting:
            self._is_idle = True
            return
        steps = scheduler.alike(MOST_ALIKE)
        if steps > 1:
            self._begin_alike(steps)
            return
        step = scheduler.schedule()
        self._journal.preemptions += len(step.preempted)
        seconds = self._seconds_of(step)
        self._journal.busy += seconds
        self._after(seconds, self._end_step, step)

    def _begin_alike(self, steps: int) -> None:
        decoding = len(self.scheduler.running)
        tokens = self.scheduler.tokens_after(max(1, steps // 2))
        seconds = self._times.seconds(decoding, tokens / decoding, [])
        self._alike = alike = _Alike(steps, seconds, self._environment.now)
        alike.end = self._after(steps * seconds, self._end_alike, alike)

    def _cut_short(self, alike: _Alike) -> None:
        """Let them end with the step that runs now."""
        now = self._environment.now
        alike.steps = min(alike.steps, int((now - alike.begin) / alike.seconds) + 1)
        # simpy cannot take an event back: it comes, and calls nothing.
        assert alike.end is not None
        alike.end.callbacks.clear()
        alike.end = None
        left = alike.begin + alike.steps * alike.seconds - now
        self._after(max(0.0, left), self._end_alike, alike)

    def _end_alike(self, event: simpy.Event) -> None:
        alike = event.value
        assert isinstance(alike, _Alike)
        self._alike = None
        # Event and steps name each other: together they would wait for a collection of cycles.
        alike.end = None
        journal, steps = self._journal, alike.steps
        journal.busy += steps * alike.seconds
        journal.steps += steps
        journal.decoded += steps * len(self.scheduler.running)
        self._end(self.scheduler.advance(steps))
        self._begin()

    def _seconds_of(self, step: Step) -> float:
        decoding = tokens = 0
        prompts = []
        for one, count in step.scheduled:
            if one.has_drafts:
                decoding += 1
                tokens += one.prompt + one.made
            else:
                prompts.append(Part(1, count, one.computed + count / 2))
        self._journal.steps += 1
        self._journal.decoded += decoding
        return self._times.seconds(decoding, tokens / decoding if decoding else 0.0, prompts)

    def _end_step(self, event: simpy.Event) -> None:
        step = event.value
        assert isinstance(step, Step)
        begun = [one for one, _ in step.scheduled if not one.has_drafts]
        finished = self.scheduler.complete(step)
        first = self._journal.first
        for sequence in begun:
            if sequence.has_drafts:
                index = self.tickets[id(sequence)].index
                if first[index] < 0:
                    first[index] = self._environment.now
        self._end(finished)
        self._begin()

    def _end(self, finished: list[Sequence]) -> None:
        for sequence in finished:
            ticket = self.tickets.pop(id(sequence))
            if ticket.then is None:
                self._journal.finished(ticket.index, self._environment.now)
            else:
                self._environment.process(self._transfer(ticket))
        if finished:
            self._pool.changed(self)

    def _transfer(self, ticket: Ticket) -> Events:
        """Move the caches; the link of this engine carries one request after the other."""
        assert ticket.then is not None
        with self._wire.request() as turn:
            yield turn
            if self._link is not None:
                yield self._environment.timeout(self._link.seconds(ticket.request.prompt_tokens))
        ticket.then(ticket)
