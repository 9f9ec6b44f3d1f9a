# SPDX-License-Identifier: Apache-2.0
"""A cluster of engines under a load, as events of simpy.

Requests arrive, are given to an engine (``engines.py``), and wait there (``scheduling.py``); a step
takes as long as is predicted (``step_time.py``). With prefill and decode apart, the caches of a
prompt cross a link between the two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import simpy

from mkv_ascend.advice.cluster.engines import Cluster, Events, Journal, Link, Pool, Ticket, Times
from mkv_ascend.advice.cluster.scheduling import Sequence
from mkv_ascend.advice.cluster.traffic import Request
from mkv_ascend.advice.cluster.yields import Yields

__all__ = ["Cluster", "Link", "Served", "simulate"]


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
    journal = Journal(progress)
    first = cluster.prefill or cluster.engines
    deciding = Pool(environment, cluster, first, times, journal)
    after = None
    if cluster.prefill:
        after = Pool(environment, cluster, cluster.engines - first, times, journal)
    environment.process(_arrivals(environment, requests, deciding, after, yields, journal))
    environment.run()
    return Served(
        np.array(journal.arrival),
        np.array(journal.first),
        np.array(journal.finish),
        np.array(journal.output),
        journal.preemptions,
        journal.busy,
        journal.decoded,
        journal.steps,
        journal.refused,
    )


def _arrivals(
    environment: simpy.Environment,
    requests: Iterable[Request],
    pool: Pool,
    after: Pool | None,
    yields: Yields | None,
    journal: Journal,
) -> Events:
    for request in requests:
        if request.arrival > environment.now:
            yield environment.timeout(request.arrival - environment.now)
        index = journal.arrived(environment.now, request)
        output = request.output_tokens
        drawn = None if yields is None else yields(output)
        ticket = Ticket(index, request, yields=drawn)
        whole = request.prompt_tokens + output
        if not pool.holds(whole) or (after is not None and not after.holds(whole)):
            journal.refused += 1
            continue
        if after is not None and output > 1:
            ticket.then = after.take_over
            output, drawn = 1, None
        sequence = Sequence(
            request.prompt_tokens, output, drawn, request.prefix, request.prefix_tokens
        )
        pool.add(ticket, sequence)
