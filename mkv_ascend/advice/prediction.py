# SPDX-License-Identifier: Apache-2.0
"""From the work of target and draft to the time of a step with and without a proposal.

And constants moved to what a user measured: results of ``vllm bench serve`` without a draft.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mkv_ascend.advice.work import Calibration, Device, ModelWork, forward


@dataclass(frozen=True)
class Serving:
    """What runs where. ``context``: tokens of each request that is decoded.

    ``full_graphs``: whether a whole step is one graph, else each layer's parts. ``ahead``: whether
    a step without a proposal is scheduled while the one before it runs, which hides the host time
    of scheduling.
    """

    target: ModelWork
    device: Device
    calibration: Calibration
    context: int
    full_graphs: bool = True
    ahead: bool = True


@dataclass(frozen=True)
class Drafting:
    """``model``: None for methods that look tokens up. ``at_once``: whether one pass drafts all.

    ``first_tokens``: tokens of each request in the first pass. ``ahead``: whether steps of an
    engine that drafts are scheduled ahead; vLLM decides that by the method.
    """

    model: ModelWork | None = None
    at_once: bool = False
    first_tokens: int = 1
    ahead: bool = True


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of one step. ``length``: tokens that it yields for each request."""

    requests: int
    tokens: int
    length: float
    plain: float
    verify: float
    draft: float
    host: float
    """Of verify step and draft, beside what both take on the device."""
    plain_host: float
    band: float

    @property
    def speed_up(self) -> float:
        """Tokens of a second with the proposal over those without."""
        step = self.verify + self.draft + self.host
        return self.length * (self.plain + self.plain_host) / step

    @property
    def time_per_token(self) -> float:
        """Seconds of a token with the proposal."""
        return (self.verify + self.draft + self.host) / self.length

    @property
    def bounds(self) -> tuple[float, float]:
        """What may be measured, if the prediction errs by no more than ``band`` of it."""
        return self.speed_up / (1 + self.band), self.speed_up / (1 - self.band)


def length_of(acceptance: float, tokens: int) -> float:
    """Tokens of a step: the one of the target, and each draft token if all before it were right."""
    return sum(acceptance**place for place in range(tokens + 1))


def acceptance_of(length: float, tokens: int) -> float:
    """The acceptance with which a proposal of ``tokens`` tokens has this mean length.

    Raises:
        ValueError: no proposal of so many tokens has it.
    """
    if not 1 <= length <= tokens + 1:
        raise ValueError(f"a step with {tokens} draft tokens yields 1 to {tokens + 1} tokens")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if length_of(middle, tokens) < length else (low, middle)
    return (low + high) / 2


def host_counts(
    serving: Serving, drafting: Drafting, requests: int, tokens: int
) -> dict[str, float]:
    """Of each term of host time, how many a step has."""
    layers = serving.target.number_of_layers
    ahead = drafting.ahead if tokens else serving.ahead
    if tokens and drafting.model is not None:
        layers += drafting.model.number_of_layers * (1 if drafting.at_once else tokens)
    return {
        "step": 0 if ahead else 1,
        "layer": 0 if serving.full_graphs else layers,
        "request": requests,
        "speculation": 1 if tokens and not ahead else 0,
    }


def plain(serving: Serving, requests: int) -> float:
    """Seconds of a step without a proposal, on the device."""
    return _forward(serving, serving.target, requests, 1)


def predict(
    serving: Serving, drafting: Drafting, requests: int, tokens: int, length: float
) -> Prediction:
    """A step that verifies ``tokens`` draft tokens and drafts as many; 0 tokens: a plain step."""
    counts = host_counts(serving, drafting, requests, tokens)
    return Prediction(
        requests=requests,
        tokens=tokens,
        length=length,
        plain=plain(serving, requests),
        verify=_forward(serving, serving.target, requests, 1 + tokens),
        draft=_draft(serving, drafting, requests, tokens),
        host=serving.calibration.host(counts),
        plain_host=serving.calibration.host(host_counts(serving, drafting, requests, 0)),
        band=serving.calibration.band,
    )


def _forward(serving: Serving, model: ModelWork, requests: int, tokens: int) -> float:
    cost = forward(model, serving.device, requests, tokens, serving.context)
    return cost.seconds(serving.device)


def _draft(serving: Serving, drafting: Drafting, requests: int, tokens: int) -> float:
    """Seconds of the draft's passes on the device."""
    if drafting.model is None or not tokens:
        return 0.0
    if drafting.at_once:
        return _forward(serving, drafting.model, requests, 1 + tokens)
    first = _forward(serving, drafting.model, requests, tokens + drafting.first_tokens)
    return first + (tokens - 1) * _forward(serving, drafting.model, requests, 1)


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
