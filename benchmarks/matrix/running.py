# SPDX-License-Identifier: Apache-2.0
"""Run one cell on one side, ours or stock, and judge it."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.matrix import lookup, prompts, refusals
from benchmarks.matrix.cells import Cell, K
from benchmarks.matrix.judging import Judge, acceptance, faults
from mkv_ascend.testing import engine
from mkv_ascend.testing.tiny_models import model_directory

WORKS, REFUSED, FAILS = "works", "refused", "fails"

OURS, STOCK = "ours", "stock"

TIMEOUT_SECONDS = {OURS: 240.0, STOCK: 120.0}
"""Stock engines that hang are not waited for."""

CHUNK = 96
"""Tokens of a step, so that the longest prompts are prefilled in several, beside decoding ones."""


@dataclass(frozen=True)
class Verdict:
    """How a cell ended on one side.

    Attributes:
        outcome: ``works``, ``refused`` or ``fails``.
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


def scenario(cell: Cell, requests: list[list[int]]) -> engine.Scenario:
    """What both sides run: 8 requests at once, in chunks, of which one is preempted."""
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
            "max_num_batched_tokens": CHUNK,
            **speculative,
            **cell.engine,
        },
        record_drafts=True,
        force_preemption=True,
    )


LOOKUP = {
    "ngram": {"prompt_lookup_min": lookup.SHORTEST, "prompt_lookup_max": lookup.LONGEST},
}
"""Fields of ``speculative_config`` by method."""


def run(cell: Cell, side: str) -> Verdict:
    """Run ``cell`` in this process's environment, which must be the one of ``side``."""
    started = time.monotonic()
    judge = Judge(cell)
    requests = judge.requests()
    try:
        result = engine.run(scenario(cell, requests), TIMEOUT_SECONDS[side])
    except engine.EngineFailedError as error:
        return _ended(str(error), time.monotonic() - started)
    if ("mkv_ascend" in result.platform) != (side == OURS):
        raise RuntimeError(f"the platform is {result.platform}, {side} was asked for")
    expected = judge.expectation(requests, result.preempted_contexts)
    found = faults(judge, result, expected)
    return Verdict(
        FAILS if found else WORKS,
        "; ".join(found),
        acceptance(result.accepted_per_position, result.num_drafts),
        acceptance(expected.accepted_per_position, expected.verified),
        round(time.monotonic() - started, 1),
    )


def _ended(log: str, seconds: float) -> Verdict:
    """The verdict on an engine that ended early with ``log``."""
    words = refusals.last_words(log)
    refusal = refusals.known_refusal(log)
    if refusal is None:
        return Verdict(FAILS, words, seconds=round(seconds, 1))
    return Verdict(REFUSED, f"{refusal.reason} ({words})", seconds=round(seconds, 1))
