# SPDX-License-Identifier: Apache-2.0
"""Requests: drawn with a seed, or read from a file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

__all__ = ["Request", "Traffic", "TrafficError", "draw", "read_trace"]

FIELDS = ("arrival", "prompt_tokens", "output_tokens")


class TrafficError(ValueError):
    """A file that is no trace; the text says which line, and what is allowed."""


@dataclass(frozen=True)
class Request:
    """One request. ``arrival``: seconds. The first ``prefix_tokens`` of the prompt are those of
    every request with the same ``prefix``."""

    arrival: float
    prompt_tokens: int
    output_tokens: int
    prefix: int | None = None
    prefix_tokens: int = 0


@dataclass(frozen=True)
class Traffic:
    """What is drawn: exponential times between arrivals (a Poisson process) of ``rate`` a second.

    Prompts and outputs have exponential lengths of these means, at least one token. A share of the
    requests begins with one of ``prefixes`` texts of ``prefix_tokens`` tokens, which its prompt
    has besides.
    """

    rate: float
    requests: int
    prompt_tokens: int
    output_tokens: int
    prefix_share: float = 0.0
    prefixes: int = 1
    prefix_tokens: int = 0
    seed: int = 0


def draw(traffic: Traffic) -> Iterator[Request]:
    """The requests in order of arrival; the same for the same seed."""
    random = np.random.default_rng(traffic.seed)
    count = traffic.requests
    arrivals = np.cumsum(random.exponential(1 / traffic.rate, count))
    prompts = _lengths(random, traffic.prompt_tokens, count)
    outputs = _lengths(random, traffic.output_tokens, count)
    shares = random.random(count) < traffic.prefix_share
    prefixes = random.integers(0, traffic.prefixes, count)
    drawn = (arrivals, prompts, outputs, shares & (traffic.prefix_tokens > 0), prefixes)
    for arrival, prompt, output, shared, prefix in zip(
        *(column.tolist() for column in drawn), strict=True
    ):
        if shared:
            begins = traffic.prefix_tokens
            yield Request(arrival, prompt + begins, output, prefix, begins)
        else:
            yield Request(arrival, prompt, output)


def _lengths(random: np.random.Generator, mean: int, count: int) -> np.ndarray:
    lengths: np.ndarray = np.maximum(1, np.rint(random.exponential(mean, count))).astype(int)
    return lengths


def read_trace(path: Path) -> list[Request]:
    """The requests of a file of JSON lines, in order of arrival.

    Each line has ``arrival`` (seconds), ``prompt_tokens`` and ``output_tokens``, and may have
    ``prefix`` (a whole number) with ``prefix_tokens``.

    Raises:
        TrafficError: it cannot be read, or a line is not that.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TrafficError(f"{path}: {error}") from error
    found = [_request(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise TrafficError(f"{path}: there is no request in it")
    return sorted(found, key=lambda request: request.arrival)


def _request(path: Path, number: int, line: str) -> Request:
    allowed = (
        f"a JSON object with {', '.join(FIELDS)}, and at will prefix with prefix_tokens, "
        "of which tokens are whole numbers of at least 1"
    )
    problem = TrafficError(f"{path}, line {number}: {line[:80]!r}; allowed: {allowed}")
    try:
        plain = json.loads(line)
        arrival, prompt, output = (plain.pop(name) for name in FIELDS)
        prefix, tokens = plain.pop("prefix", None), plain.pop("prefix_tokens", 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        raise problem from None
    numbers = [prompt, output, tokens, *([] if prefix is None else [prefix])]
    if plain or isinstance(arrival, bool) or not isinstance(arrival, (int, float)):
        raise problem
    if any(type(value) is not int for value in numbers) or min(prompt, output) < 1:
        raise problem
    if not 0 <= arrival < float("inf") or not 0 <= tokens <= prompt:
        raise problem
    return Request(float(arrival), prompt, output, prefix if tokens else None, tokens)
