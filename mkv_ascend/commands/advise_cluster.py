# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend advise --engines N``: how long requests wait in a cluster, by draft and without."""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from mkv_ascend.commands.argument_types import positive

if TYPE_CHECKING:
    from mkv_ascend.advice.cluster.simulation import Cluster, Served
    from mkv_ascend.advice.cluster.traffic import Request, Traffic
    from mkv_ascend.advice.prediction import Drafting, Serving

    Load = Traffic | list[Request]
    """What is drawn, in each process anew, or the requests of a trace."""

BLOCK = 128
"""Tokens of a block, as on Ascend by default."""
PERCENTILES = (50, 90, 99)
ROUTES = ("round_robin", "least_requests")
SAY_EVERY_SECONDS = 15.0
PILOT = 2000
"""Requests by which the number of draft tokens is chosen, where none is given."""
TWO_PROCESSES_FROM = 50_000
"""Requests for which a second process is worth its start."""

COLLECTED_EVERY = 200_000
"""Objects after which Python looks for cycles that nobody holds."""


class ClusterError(ValueError):
    """What is asked for cannot be simulated; the text says what to change."""


@dataclass(frozen=True)
class Asked:
    """The options, and what ``advise`` has found already."""

    arguments: argparse.Namespace
    serving: Serving
    drafting: Drafting
    acceptance: float
    memory: dict[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a cluster."""
    group = parser.add_argument_group(
        "a cluster", "Simulates many engines under a load, with --engines and --rate or --trace."
    )
    add = group.add_argument
    add("--engines", type=positive, metavar="N", help="engines of --tp ranks each")
    add(
        "--prefill",
        type=positive,
        metavar="P",
        help="so many of them read prompts only, and send the caches to the others",
    )
    add("--rate", type=_number, metavar="R", help="requests a second, of a Poisson process")
    add("--trace", type=Path, metavar="FILE", help="requests of a file, in place of drawn ones")
    add("--requests", type=positive, default=2000, metavar="N", help="drawn (%(default)s)")
    add("--prompt", type=positive, default=1000, metavar="TOKENS", help="mean (%(default)s)")
    add("--output", type=positive, default=250, metavar="TOKENS", help="mean (%(default)s)")
    add(
        "--shared",
        type=_shared,
        metavar="SHARE,PREFIXES,TOKENS",
        help="so many requests begin with one of these prefixes, such as 0.5,20,1024",
    )
    add("--seqs", type=positive, default=256, metavar="N", help="--max-num-seqs (%(default)s)")
    add(
        "--batched-tokens",
        type=positive,
        default=8192,
        metavar="TOKENS",
        help="--max-num-batched-tokens (%(default)s)",
    )
    add("--route", choices=ROUTES, default=ROUTES[0], help="(%(default)s)")
    add("--seed", type=int, default=0, metavar="N", help="of what is drawn (%(default)s)")


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; allowed: a number above 0")
    return value


def _shared(text: str) -> tuple[float, int, int]:
    try:
        share, prefixes, tokens = text.split(",")
        found = float(share), int(prefixes), int(tokens)
    except ValueError:
        found = -1.0, 0, 0
    if not 0 <= found[0] <= 1 or min(found[1:]) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r}; allowed: a share from 0 to 1, a number of prefixes, and their tokens"
        )
    return found


def own_options(arguments: argparse.Namespace) -> argparse.Namespace:
    """What the simulation reads, which another process can be sent."""
    names = (
        *("engines", "prefill", "rate", "trace", "requests", "prompt", "output", "shared"),
        *("seqs", "batched_tokens", "route", "seed", "tokens"),
    )
    return argparse.Namespace(**{name: getattr(arguments, name) for name in names})


def is_asked(arguments: argparse.Namespace) -> bool:
    """Whether a cluster is to be simulated. Raises ClusterError where options do not fit."""
    if arguments.engines is None:
        if arguments.prefill or arguments.rate or arguments.trace:
            raise ClusterError("--prefill, --rate and --trace need --engines N")
        return False
    if (arguments.rate is None) == (arguments.trace is None):
        raise ClusterError("--engines needs --rate R or --trace FILE, one of the two")
    if arguments.prefill and arguments.prefill >= arguments.engines:
        raise ClusterError(
            f"--prefill {arguments.prefill} of --engines {arguments.engines}: at least one must "
            "decode"
        )
    return True


def simulated(asked: Asked) -> dict[str, Any]:
    """Percentiles with and without the draft, of the same requests. Raises ClusterError."""
    load = _load(asked.arguments)
    tokens = asked.arguments.tokens or _best_tokens(asked, load)
    if _number_of(load) < TWO_PROCESSES_FROM:
        found = [_served(asked, load, count) for count in (0, tokens)]
    else:
        # Each side has a core of its own. By "spawn" Python would look into the current folder.
        with ProcessPoolExecutor(2, get_context("fork"), _begin) as processes:
            sides = [processes.submit(_served, asked, load, count) for count in (0, tokens)]
            found = [side.result() for side in sides]
    return {
        "engines": asked.arguments.engines,
        "prefill": asked.arguments.prefill or 0,
        "kind": "simulation of predicted steps",
        "without": found[0],
        "with": {"tokens": tokens, **found[1]},
    }


def _begin() -> None:
    """Prepare a process of one side, which ends with the command, however that ends.

    There are few cycles to find; to look for them after each 700 objects takes a tenth.
    """
    gc.set_threshold(COLLECTED_EVERY)
    Thread(target=_end_with_the_command, daemon=True).start()


def _end_with_the_command() -> None:
    """A simulation that nobody waits for would go on for minutes."""
    command = parent_process()
    if command is not None:
        command.join()
        os._exit(1)


def _best_tokens(asked: Asked, load: Load) -> int:
    """For the batches that there are without a draft: draft tokens with the largest speed-up."""
    from mkv_ascend.advice.prediction import length_of, predict

    pilot = list(islice(_requests(load), PILOT))
    batch = max(1, round(_served(asked, pilot, 0)["mean_batch"]))
    return max(
        range(1, 16),
        key=lambda count: (
            predict(
                asked.serving, asked.drafting, batch, count, length_of(asked.acceptance, count)
            ).speed_up
        ),
    )


def _served(asked: Asked, load: Load, tokens: int) -> dict[str, Any]:
    from mkv_ascend.advice.cluster.simulation import simulate
    from mkv_ascend.advice.cluster.step_time import StepTime
    from mkv_ascend.advice.cluster.yields import draw_yields
    from mkv_ascend.advice.prediction import Drafting

    drafting = asked.drafting if tokens else Drafting()
    served = simulate(
        _cluster(asked, tokens),
        _requests(load),
        StepTime(asked.serving, drafting, tokens),
        draw_yields(asked.acceptance, tokens, asked.arguments.seed + 1),
        _progress(_number_of(load), f"with {tokens} draft tokens" if tokens else "without a draft"),
    )
    return _summary(served, asked.arguments.engines)


def _load(arguments: argparse.Namespace) -> Load:
    from mkv_ascend.advice.cluster.traffic import Traffic, TrafficError, read_trace

    if arguments.trace is not None:
        try:
            return read_trace(arguments.trace)
        except TrafficError as error:
            raise ClusterError(f"--trace: {error}") from error
    share, prefixes, tokens = arguments.shared or (0.0, 1, 0)
    return Traffic(
        arguments.rate,
        arguments.requests,
        arguments.prompt,
        arguments.output,
        share,
        prefixes,
        tokens,
        arguments.seed,
    )


def _requests(load: Load) -> Iterator[Request]:
    """Drawn only when they arrive: a million at once would take more memory than all engines."""
    from mkv_ascend.advice.cluster.traffic import Traffic, draw

    return draw(load) if isinstance(load, Traffic) else iter(load)


def _number_of(load: Load) -> int:
    from mkv_ascend.advice.cluster.traffic import Traffic

    return load.requests if isinstance(load, Traffic) else len(load)


def _cluster(asked: Asked, tokens: int) -> Cluster:
    from mkv_ascend.advice.cluster.scheduling import Limits
    from mkv_ascend.advice.cluster.simulation import Cluster, Link

    memory = asked.memory
    if "unplanned" in memory:
        raise ClusterError(f"a cluster needs the memory of a request: {memory['unplanned']}")
    token_bytes = memory["request_bytes"] / asked.serving.context
    limits = Limits(
        asked.arguments.seqs,
        asked.arguments.batched_tokens,
        int(memory["cache_bytes"] / (token_bytes * BLOCK)),
        BLOCK,
        draft_tokens=tokens,
        lookahead=tokens if asked.drafting.model is not None else 0,
    )
    prefill = asked.arguments.prefill or 0
    link = Link(token_bytes, asked.serving.device.link_bytes_per_second) if prefill else None
    return Cluster(asked.arguments.engines, limits, prefill, link, asked.arguments.route)


def _progress(requests: int, what: str) -> Callable[[int, float], None]:
    """Says now and then how far it is, on standard error."""
    said = time.monotonic()

    def progress(ended: int, _: float) -> None:
        nonlocal said
        if ended % 256 == 0 and time.monotonic() - said > SAY_EVERY_SECONDS:
            said = time.monotonic()
            print(f"{what}: {ended} of {requests} requests", file=sys.stderr)

    return progress


def _summary(served: Served, engines: int) -> dict[str, Any]:
    import numpy as np

    done = served.finish >= 0
    if not done.any():
        raise ClusterError("no request fits into the memory of an engine: shorten prompts")
    first = (served.first - served.arrival)[done]
    long = done & (served.output > 1)
    each = (served.finish - served.first)[long] / (served.output[long] - 1)
    last = float(served.finish[done].max())
    arrived = float(served.arrival.max())
    half = len(first) // 2
    # Waits that go on growing are a queue without end, not a percentile.
    grows = half >= 100 and first[half:].mean() > 2 * first[:half].mean() and last > 1.1 * arrived

    def percentiles(values: Any) -> dict[str, float]:
        if not len(values):
            return {}
        found = np.percentile(values, PERCENTILES)
        return {
            f"p{p}": round(1e3 * float(value), 2)
            for p, value in zip(PERCENTILES, found, strict=True)
        }

    return {
        "ttft_ms": percentiles(first),
        "tpot_ms": percentiles(each),
        "tokens_per_second": round(float(served.output[done].sum()) / last, 1),
        "mean_batch": round(served.decoded / served.steps, 2) if served.steps else 0.0,
        "busy_share": round(served.busy / (engines * last), 3),
        "preemptions": served.preemptions,
        "refused": served.refused,
        "overloaded": bool(grows),
    }


def lines(cluster: dict[str, Any] | None) -> list[str]:
    """For a terminal; none without a cluster."""
    if cluster is None:
        return []
    apart = f", {cluster['prefill']} of which only read prompts" if cluster["prefill"] else ""
    found = [
        f"  simulated, not measured: {cluster['engines']} engines{apart}",
        f"  {'':<16} {'TTFT ms p50':>12} {'p90':>9} {'p99':>9} {'TPOT ms p50':>12} {'p90':>8} "
        f"{'p99':>8} {'tokens/s':>10} {'batch':>6} {'busy':>5}",
    ]
    for side in ("without", "with"):
        one = cluster[side]
        name = "without a draft" if side == "without" else f"K = {one['tokens']}"
        times = [one["ttft_ms"][f"p{p}"] for p in PERCENTILES]
        each = [one["tpot_ms"].get(f"p{p}", float("nan")) for p in PERCENTILES]
        found.append(
            f"  {name:<16} {times[0]:>12.1f} {times[1]:>9.1f} {times[2]:>9.1f} {each[0]:>12.2f} "
            f"{each[1]:>8.2f} {each[2]:>8.2f} {one['tokens_per_second']:>10.0f} "
            f"{one['mean_batch']:>6.1f} {100 * one['busy_share']:>4.0f}%"
        )
        if one["overloaded"]:
            found.append(
                f"  {name}: requests come faster than they are served; waits go on growing"
            )
        if one["preemptions"]:
            found.append(f"  {name}: {one['preemptions']} preemptions")
        if one["refused"]:
            found.append(
                f"  {name}: {one['refused']} requests fit into no engine and were left out"
            )
    return found
