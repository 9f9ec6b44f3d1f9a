# SPDX-License-Identifier: Apache-2.0
"""Constants moved to what a user measured: results of ``vllm bench serve`` without a draft."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mkv_ascend.advice.prediction import Drafting, Serving, predict

__all__ = ["MeasuredError", "Run", "moved", "read_run"]


class MeasuredError(ValueError):
    """A result that cannot be read, or does not say what is needed."""


@dataclass(frozen=True)
class Run:
    """``requests`` decoded together behind ``context`` tokens, in so many seconds a step."""

    requests: int
    context: int
    seconds: float


def read_run(path: Path) -> Run:
    """A result that ``vllm bench serve --save-result --max-concurrency N`` wrote.

    Raises:
        MeasuredError: it is none, or was measured with a draft.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MeasuredError(f"{path}: no result can be read: {error}") from error
    if not isinstance(result, dict):
        raise MeasuredError(f"{path}: a JSON object of vllm bench serve is expected")
    if "spec_decode_acceptance_length" in result:
        raise MeasuredError(f"{path}: measured with a draft; give a result without one")
    completed = _positive(path, result, "completed")
    tokens = _positive(path, result, "total_input_tokens")
    # On average a request has half of its output behind it.
    tokens += _positive(path, result, "total_output_tokens") / 2
    requests = _positive(path, result, "max_concurrency")
    milliseconds = _positive(path, result, "mean_tpot_ms")
    return Run(round(requests), max(1, round(tokens / completed)), milliseconds / 1e3)


def _positive(path: Path, result: dict[str, Any], name: str) -> float:
    value: Any = result.get(name)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):
        raise MeasuredError(f"{path}: {name} is {value!r}; a number over 0 is expected")
    return float(value)


def moved(serving: Serving, runs: Sequence[Run]) -> Serving:
    """With the host time of every step moved by the mean of what the runs took longer.

    Host time does not fall below zero: a run faster than its predicted device time leaves none.
    """
    apart = []
    for run in runs:
        here = replace(serving, context=run.context)
        step = predict(here, Drafting(), run.requests, 0, 1.0)
        apart.append(max(run.seconds - step.plain - step.plain_host, -step.plain_host))
    seconds = {**serving.calibration.host_seconds, "measured": sum(apart) / len(apart)}
    source = f"{serving.calibration.source}; moved by {1e3 * seconds['measured']:+.2f} ms a step"
    calibration = replace(serving.calibration, host_seconds=seconds, source=source)
    return replace(serving, calibration=calibration)
