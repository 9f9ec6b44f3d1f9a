# SPDX-License-Identifier: Apache-2.0
"""Several servers of one engine: who has clients, and which rank is whose.

vLLM refuses these when its command begins, or with its configuration; the first behind a traceback.
"""

from __future__ import annotations

from collections.abc import Iterator

from mkv_ascend.checks.facts import ServeFacts
from mkv_ascend.checks.refusal import Refusal

__all__ = ["CHECKS"]

RANK, FIRST, ALONE = "data_parallel_rank", "data_parallel_start_rank", "data_parallel_external_lb"
OF_NODES, OF_PORTS = "data_parallel_hybrid_lb", "data_parallel_multi_port_external_lb"
HERE = "data_parallel_size_local"


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _refused(asked: str, possible: str, change: str) -> Refusal:
    return Refusal("servers", asked, possible, change)


def without_clients(facts: ServeFacts) -> Iterator[Refusal]:
    """A node without an API server, and what only API servers have."""
    if not facts.engine.get("headless"):
        return
    servers = facts.whole("api_server_count", 0)
    if servers > 0:
        yield _refused(
            f"--headless is given, and --api-server-count is {servers}",
            "API servers on the node that clients call, and none on others",
            "leave --api-server-count out, or --headless",
        )
    if facts.engine.get(OF_NODES):
        yield _refused(
            f"--headless is given, and {_option(OF_NODES)}: each node of it has an API server",
            "nodes without API servers behind one that has them all",
            f"leave {_option(OF_NODES)} out, or --headless",
        )


def balancers(facts: ServeFacts) -> Iterator[Refusal]:
    """More than one way for requests to reach the ranks."""
    engine = facts.engine
    external = [name for name in (ALONE, RANK) if engine.get(name) not in (None, False)]
    ways = [OF_PORTS] if engine.get(OF_PORTS) else []
    ways += external[:1]
    if engine.get(OF_NODES):
        ways.append(OF_NODES)
    elif not engine.get(OF_PORTS) and engine.get(FIRST) is not None:
        ways.append(FIRST)
    if len(ways) > 1:
        yield _refused(
            f"{' and '.join(map(_option, ways))} are given: requests would reach the ranks in "
            f"{len(ways)} ways",
            f"one of {_option(OF_PORTS)}, {_option(ALONE)} (or {_option(RANK)}) and "
            f"{_option(OF_NODES)} (or {_option(FIRST)})",
            "leave all of them out but one",
        )


def ranks(facts: ServeFacts) -> Iterator[Refusal]:
    """A server's rank, or the first of its ranks, beyond those that there are."""
    copies = facts.whole("data_parallel_size", 1)
    starts = facts.engine.get(HERE) is not None and facts.engine.get(RANK) is None
    name = FIRST if starts else RANK
    rank = facts.whole(name, 0)
    if copies > 1 and rank >= copies:
        yield _refused(
            f"{_option(name)} is {rank}, and --data-parallel-size {copies}",
            f"0 to {copies - 1}",
            f"count ranks from 0 on, or raise --data-parallel-size to {rank + 1}",
        )


def alone(facts: ServeFacts) -> Iterator[Refusal]:
    """A balancer outside, of a server that does not say which rank it is, or is several."""
    rank, here = facts.engine.get(RANK), facts.engine.get(HERE)
    told = rank is not None
    if facts.engine.get(ALONE) and not told and facts.whole("nnodes", 1) == 1:
        yield _refused(
            f"{_option(ALONE)} is given, and not which rank this server is",
            "a rank, or --nnodes with --node-rank",
            f"add {_option(RANK)}",
        )
    if (told or facts.engine.get(ALONE)) and here not in (None, 1):
        yield _refused(
            f"{_option(RANK if told else ALONE)} is given, and {_option(HERE)} is {here}: a server "
            "behind a balancer outside is one rank",
            "1",
            f"leave {_option(HERE)} out",
        )


CHECKS = (without_clients, balancers, ranks, alone)
