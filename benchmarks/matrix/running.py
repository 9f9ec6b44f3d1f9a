# SPDX-License-Identifier: Apache-2.0
"""Run one cell on one side (ours or stock, in ACL graphs, by model runner V2) and judge it."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks import host
from benchmarks.matrix import lookup, prompts, refusals
from benchmarks.matrix.cells import Cell, K
from benchmarks.matrix.families import ROUNDED
from benchmarks.matrix.judging import Judge, acceptance
from benchmarks.matrix.rounded import RoundedJudge
from benchmarks.matrix.rounded_models import MODELS
from tests.support import engine
from tests.support.tiny_models import model_directory

WORKS, REFUSED, FAILS = "works", "refused", "fails"

DRAFT_EAGER = "draft eager"
"""In graphs: all is right, the target's verify steps are replayed, the draft's passes are not."""

EAGER = "eager"
"""In graphs: everything is right, but no step fitted the captured graphs."""

NO_HIT = "no hit"
"""With prefix hits: everything is right, but blocks hold more tokens than requests have in common,
so that none began with a cached one."""

OURS, GRAPH, HITS, STOCK = "ours", "graph", "hits", "stock"
OURS_V2, GRAPH_V2, HITS_V2 = "ours-v2", "graph-v2", "hits-v2"
SIDES = (OURS, GRAPH, HITS, STOCK, OURS_V2, GRAPH_V2, HITS_V2)
IN_GRAPHS = frozenset({GRAPH, GRAPH_V2, HITS, HITS_V2})
ON_V2 = frozenset({OURS_V2, GRAPH_V2, HITS_V2})
"""Sides with model runner V2."""
WITH_HITS = frozenset({HITS, HITS_V2})
"""Sides as users have them by default: prefix caching, with a prefix that all requests share, and
asynchronous scheduling."""

GRAPH_MODE = "FULL_DECODE_ONLY"
"""Full graphs for steps in which all requests verify. What vLLM's default, FULL_AND_PIECEWISE, adds
is graphs of pieces for mixed batches, for which Dynamo traces the models: too slow here."""

CAPTURED_REQUESTS = (1, 4, 8)
"""Graphs are captured for so many requests; batches in between are padded."""

TIMEOUT_SECONDS = {side: 120.0 if side == STOCK else 240.0 for side in SIDES}
"""Stock engines that hang are not waited for."""

V2_SAID = "npu model runner v2"
"""What vllm-ascend warns of when it makes model runner V2."""

CHUNK = 96
"""Tokens of a step, so that the longest prompts are prefilled in several, beside decoding ones."""


@dataclass(frozen=True)
class Verdict:
    """How a cell ended on one side.

    Attributes:
        outcome: ``works``, ``refused`` or ``fails``; in graphs also ``draft eager`` or
            ``eager``.
        reason: why, where it does not work.
        acceptance: accepted draft tokens per proposal; None where nothing was drafted.
        reference_acceptance: the same by the reference.
        seconds: it took.
    """

    outcome: str
    reason: str = ""
    acceptance: float | None = None
    reference_acceptance: float | None = None
    seconds: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """For the store."""
        return asdict(self)


def judge_of(cell: Cell, side: str = OURS) -> Judge:
    """Who says what is right for ``cell``."""
    if cell.reference == ROUNDED:
        model = MODELS[cell.target]
        return RoundedJudge(cell, model.common if side in WITH_HITS else model.mixed)
    return Judge(cell, prompts.COMMON if side in WITH_HITS else prompts.MIXED)


def schedules_ahead(cell: Cell, side: str) -> bool:
    """Whether scheduling is asynchronous; not of lookup, which needs the tokens on the host."""
    return side in WITH_HITS and cell.draft_model is not None


def scenario(cell: Cell, requests: list[list[int]], side: str = OURS) -> engine.Scenario:
    """What sides run: 8 requests at once, in chunks; one is preempted, or they share a prefix."""
    hits = side in WITH_HITS
    if cell.draft_model is None:
        speculative = {
            "speculative_config": {
                "method": cell.method,
                "num_speculative_tokens": K,
                **LOOKUP.get(cell.method, {}),
            }
        }
    else:
        speculative = {}
    return engine.Scenario(
        str(model_directory(cell.target_model)),
        None if cell.draft_model is None else str(model_directory(cell.draft_model)),
        num_speculative_tokens=K,
        prompts=requests,
        max_tokens=prompts.NEW_TOKENS,
        speculative={"method": cell.method},
        engine={
            "max_num_seqs": len(requests),
            **(BY_DEFAULT if hits else {"max_num_batched_tokens": CHUNK}),
            **({"async_scheduling": True} if schedules_ahead(cell, side) else {}),
            **speculative,
            **cell.engine,
        },
        graphs=GRAPH_MODE if side in IN_GRAPHS else None,
        capture_sizes=tuple(count * (K + 1) for count in CAPTURED_REQUESTS),
        record_drafts=True,
        force_preemption=not hits,
        environment=host.RUNNERS["v2"] if side in ON_V2 else {},
    )


BY_DEFAULT = {
    "enable_prefix_caching": True,
    "max_num_batched_tokens": 512,
    "kv_cache_memory_bytes": 256 << 20,
}
"""With prefix caching. A step has room for one request and a part of the next, and the caches for
all of them, so that none is preempted."""

LOOKUP = {
    "ngram": {"prompt_lookup_min": lookup.SHORTEST, "prompt_lookup_max": lookup.LONGEST},
}
"""Fields of ``speculative_config`` by method."""


def run(cell: Cell, side: str) -> Verdict:
    """Run ``cell`` in this process's environment, which must be the one of ``side``."""
    started = time.monotonic()
    judge = judge_of(cell, side)
    requests = judge.requests()
    try:
        result = engine.run(scenario(cell, requests, side), TIMEOUT_SECONDS[side])
    except engine.EngineFailedError as error:
        return _ended(str(error), time.monotonic() - started)
    if ("mkv_ascend" in result.platform) == (side == STOCK):
        raise RuntimeError(f"the platform is {result.platform}, {side} was asked for")
    if (V2_SAID in result.log) != (side in ON_V2):
        raise RuntimeError(f"{side} was asked for, which is not the model runner that ran")
    if result.asynchronous != schedules_ahead(cell, side):
        raise RuntimeError(f"{side} was asked for, which was not scheduled so")
    assessment = judge.assess(requests, result)
    found = assessment.faults
    outcome, reason = (FAILS, "; ".join(found)) if found else (WORKS, "")
    if side in IN_GRAPHS and not found:
        outcome, reason = replayed(cell, result)
    if side in WITH_HITS and outcome in (WORKS, EAGER) and not any(result.cached_tokens):
        outcome, reason = NO_HIT, "no request began with cached blocks"
    return Verdict(
        outcome,
        reason,
        acceptance(result.accepted_per_position, result.num_drafts),
        assessment.reference_acceptance,
        round(time.monotonic() - started, 1),
    )


def replayed(cell: Cell, result: engine.Result) -> tuple[str, str]:
    """Outcome and reason of a run in graphs in which everything is right."""
    if not (engine.replayed(result.log) or result.target_replays):
        if cell.draft_model is None:
            return EAGER, f"lookup found {K} tokens for every request in no step"
        return FAILS, "no step of the target was replayed from a graph"
    if cell.draft_model is None or result.draft_replays:
        return WORKS, ""
    said = re.search(r"though the target is replayed from graphs: (.*?)\.\s", result.log)
    if said is None:
        return FAILS, "no proposal was replayed from a graph, and nothing says why"
    return DRAFT_EAGER, said[1]


def _ended(log: str, seconds: float) -> Verdict:
    """The verdict on an engine that ended early with ``log``."""
    words = refusals.last_words(log)
    refusal = refusals.known_refusal(log)
    if refusal is None:
        return Verdict(FAILS, words, seconds=round(seconds, 1))
    return Verdict(REFUSED, f"{refusal.reason} ({words})", seconds=round(seconds, 1))
