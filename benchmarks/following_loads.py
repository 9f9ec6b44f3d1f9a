# SPDX-License-Identifier: Apache-2.0
"""Predicts what a token costs where K follows the load, beside every fixed K.

    python -m benchmarks.following_loads [--json]

The time of a step is predicted, not measured: from bytes and operations of both models, from
launches that the engine's test counts (``tests/emulated/runner_v2/test_following_loads.py``), and
from a profile of an A2 (64 GiB, 1.6 TiB/s, 353.9 TFLOPS) whose figures nobody has calibrated:

    time of n tokens = max(bytes / (bandwidth * 0.6), flop / (peak * 0.7)) + operators * 5 us

Beside the graphs a launch is taken for 5 us, too. Assumed are twelve operators a layer, and that a
draft token is accepted with the same probability wherever those before it are. The table of K is
the best by the same formula, so what is shown is what changes of the load cost, and what one K for
all loads does. ``test_following_loads.py`` of the unit tests asserts a bound of 3 %.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass

BYTES_PER_SECOND = 1.6 * 2**40 * 0.6
FLOP_PER_SECOND = 353.9e12 * 0.7
LAUNCH_SECONDS = 5e-6
MOST = 5
"""The largest K."""

Trace = Sequence[tuple[int, int]]
"""Phases of a load: (requests at once, tokens that they make in all)."""

TRACE: Trace = ((1, 400), (8, 3200), (32, 12800), (128, 51200), (32, 12800), (8, 3200), (1, 400))


@dataclass(frozen=True)
class Model:
    """What a pass of one model costs.

    Attributes:
        weights: parameters, in bfloat16.
        operators: launches of a pass.
        key_bytes: bytes of keys and values of one token.
    """

    weights: float
    operators: int
    key_bytes: int

    def seconds(self, tokens: int, requests: int, context: int) -> float:
        """Predicted time of a pass over ``tokens`` tokens of ``requests`` requests."""
        moved = 2 * self.weights + requests * context * self.key_bytes
        computed = 2 * self.weights * tokens
        time = max(moved / BYTES_PER_SECOND, computed / FLOP_PER_SECOND)
        return time + self.operators * LAUNCH_SECONDS


@dataclass(frozen=True)
class Pair:
    """A target and its draft.

    Attributes:
        launches: of a replayed proposal outside its graph, whatever K is.
        updates: of captured attention, for each pass.
        acceptance: probability that a draft token is accepted after accepted ones.
        context: tokens of a request.
    """

    target: Model
    draft: Model
    launches: int
    updates: int
    acceptance: float
    context: int = 1024

    def tokens(self, verified: int) -> float:
        """Expected tokens of a request in a step that verifies so many drafts."""
        return sum(self.acceptance**position for position in range(verified + 1))

    def seconds(self, requests: int, verified: int, drafted: int) -> float:
        """Predicted time of a step that verifies some drafts and makes others."""
        rows = requests * (verified + 1)
        passes = max(drafted, 1)
        first = self.draft.seconds(rows, requests, self.context)
        later = (passes - 1) * self.draft.seconds(requests, requests, self.context)
        host = (self.launches + passes * self.updates) * LAUNCH_SECONDS
        return self.target.seconds(rows, requests, self.context) + first + later + host

    def best(self, requests: int) -> int:
        """K with the lowest predicted cost of a token, for so many requests."""
        return min(
            range(MOST + 1),
            key=lambda k: self.seconds(requests, k, k) / self.tokens(k),
        )


def cost(pair: Pair, trace: Trace, count: int | None = None) -> float:
    """Predicted seconds per token over a trace.

    Args:
        count: the fixed K; None: the best of each load. The first step of a phase then verifies
            what was drafted for the phase before.
    """
    seconds = made = 0.0
    verified: int | None = None
    for requests, tokens in trace:
        drafted = pair.best(requests) if count is None else count
        left = float(tokens)
        while left > 0:
            verified = drafted if verified is None else verified
            seconds += pair.seconds(requests, verified, drafted)
            left -= requests * pair.tokens(verified)
            made += requests * pair.tokens(verified)
            verified = drafted
    return seconds / made


def cost_without_draft(pair: Pair, trace: Trace) -> float:
    """Predicted seconds per token over a trace, of the target alone."""
    times = [(pair.target.seconds(n, n, pair.context) / n, tokens) for n, tokens in trace]
    return sum(time * tokens for time, tokens in times) / sum(tokens for _, tokens in times)


def excess(pair: Pair, trace: Trace) -> float:
    """How much a token costs above the best fixed K from 1 on; negative where it costs less."""
    return cost(pair, trace) / min(cost(pair, trace, k) for k in range(1, MOST + 1)) - 1


QWEN3_8B = Model(8.2e9, 36 * 12, 36 * 2 * 8 * 128 * 2)
QWEN3_06B = Model(0.6e9, 28 * 12, 28 * 2 * 8 * 128 * 2)
QWEN3_32B = Model(32.8e9, 64 * 12, 64 * 2 * 8 * 128 * 2)
HEAD = Model(0.4e9, 15, 2 * 8 * 128 * 2)
LAUNCHES, OF_EAGLE3 = 5, 7
"""Counted: launches of a replayed proposal outside its graph, beside the updates."""


def pairs() -> dict[str, Pair]:
    """Pairs whose costs are printed, with acceptances that are assumed."""
    models = {
        "Qwen3-8B + 0.6B": (QWEN3_8B, QWEN3_06B, LAUNCHES, 28),
        "Qwen3-32B + 0.6B": (QWEN3_32B, QWEN3_06B, LAUNCHES, 28),
        "Qwen3-8B + eagle3": (QWEN3_8B, HEAD, OF_EAGLE3, 1),
        "Qwen3-32B + eagle3": (QWEN3_32B, HEAD, OF_EAGLE3, 1),
    }
    return {
        f"{name}, {acceptance:.0%} accepted": Pair(target, draft, launches, layers, acceptance)
        for name, (target, draft, launches, layers) in models.items()
        for acceptance in (0.5, 0.7, 0.9)
    }


def rows() -> list[dict[str, object]]:
    """One row per pair: predicted milliseconds per token, by K and with K of the load."""
    return [
        {
            "pair": name,
            "table": {str(requests): pair.best(requests) for requests, _ in TRACE[:4]},
            "without_draft_ms": round(1e3 * cost_without_draft(pair, TRACE), 4),
            "fixed_ms": {str(k): round(1e3 * cost(pair, TRACE, k), 4) for k in range(1, MOST + 1)},
            "followed_ms": round(1e3 * cost(pair, TRACE), 4),
            "excess": round(excess(pair, TRACE), 4),
        }
        for name, pair in pairs().items()
    ]


def main() -> None:
    """Print the predictions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    found = rows()
    if parser.parse_args().json:
        print(json.dumps(found, indent=1))
        return
    for row in found:
        print(row)


if __name__ == "__main__":
    main()
