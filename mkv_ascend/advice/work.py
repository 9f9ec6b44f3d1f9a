# SPDX-License-Identifier: Apache-2.0
"""The least that a forward must read and compute, of the share of a model on one rank.

And what a chip can do (``devices.json``), and apart from it what was fitted (``calibrated.json``).
A number of the first file has its source beside it; those of the second have the rows they were
fitted to (``benchmarks/prediction.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple


@dataclass(frozen=True)
class Weights:
    """Parameters, and the bytes that they have."""

    elements: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class Experts:
    """Of one layer: each token takes ``chosen`` of ``count`` experts, each with such weights."""

    count: int
    chosen: float
    each: Weights

    def touched(self, tokens: float) -> float:
        """Experts that at least one of so many tokens takes, if tokens choose evenly."""
        missed: float = (1 - self.chosen / self.count) ** tokens
        return self.count * (1 - missed)


@dataclass(frozen=True)
class Cache:
    """Keys and values that a layer reads.

    ``token_bytes``: of each token of the context, at most ``window`` tokens where it is not 0.
    ``pair_flop``: operations of one query with one key and value.
    """

    token_bytes: float
    pair_flop: float = 0.0
    window: int = 0


@dataclass(frozen=True)
class LayerWork:
    """``number`` decoder layers that are alike.

    ``weights``: what every token needs. ``state_bytes``: of a recurrent state, read and written.
    ``cube``, ``vector``, ``communication``: operators that are started.
    """

    weights: Weights
    caches: tuple[Cache, ...] = ()
    state_bytes: int = 0
    experts: Experts | None = None
    cube: int = 5
    vector: int = 5
    communication: int = 0
    number: int = 1


@dataclass(frozen=True)
class ModelWork:
    """One rank's share of a model.

    ``head``: what each step reads outside of the layers, such as the vocabulary's head.
    ``resident``: what no decoding step reads, such as the table of embeddings.
    """

    layers: tuple[LayerWork, ...]
    head: Weights
    resident: Weights = Weights()

    @property
    def number_of_layers(self) -> int:
        """All decoder layers."""
        return sum(layer.number for layer in self.layers)


@dataclass(frozen=True)
class Works:
    """Of target and draft; None for methods that look tokens up."""

    target: ModelWork
    draft: ModelWork | None = None


class Cost(NamedTuple):
    """Bytes, operations, and seconds of starting operators."""

    bytes: float
    flop: float
    starts: float

    def seconds(self, device: Device) -> float:
        """On a device: the longer of reading and computing, and the starts."""
        reading = self.bytes / device.reached_bytes_per_second
        computing = self.flop / device.reached_flop_per_second
        return max(reading, computing) + self.starts


def forward(
    model: ModelWork, device: Device, requests: float, tokens: float, context: float
) -> Cost:
    """A forward of ``tokens`` tokens of each of ``requests`` requests behind so much context."""
    rows = requests * tokens
    read: float = model.head.bytes
    flop: float = 2 * rows * model.head.elements
    starts = device.cube_seconds + device.vector_seconds
    for layer in model.layers:
        of_layer = layer.weights.bytes + 2 * requests * layer.state_bytes
        computed = 2 * rows * (layer.weights.elements + layer.state_bytes)
        for cache in layer.caches:
            seen = cache.window if 0 < cache.window < context else context
            of_layer += requests * seen * cache.token_bytes
            computed += rows * seen * cache.pair_flop
        if (experts := layer.experts) is not None:
            of_layer += experts.touched(rows) * experts.each.bytes
            computed += 2 * rows * experts.chosen * experts.each.elements
        start = layer.cube * device.cube_seconds + layer.vector * device.vector_seconds
        start += layer.communication * device.communication_seconds
        read += layer.number * of_layer
        flop += layer.number * computed
        starts += layer.number * start
    return Cost(read, flop, starts)


FOLDER = Path(__file__).parent
CHIPS = ("a2", "a3")
HOST_TERMS = ("step", "layer", "request", "speculation")
"""What host time is fitted for: each step that is not scheduled ahead, each layer outside full
graphs, each request of a step, and each step that verifies a proposal without being scheduled
ahead."""


@dataclass(frozen=True)
class Device:
    """One NPU (of A3: one die). The shares say how much of a peak an operator reaches."""

    memory_bytes: float
    bytes_per_second: float
    flop_per_second: float
    bandwidth_share: float
    flop_share: float
    cube_seconds: float
    vector_seconds: float
    communication_seconds: float

    @cached_property
    def reached_bytes_per_second(self) -> float:
        """What reading reaches of the peak."""
        return self.bytes_per_second * self.bandwidth_share

    @cached_property
    def reached_flop_per_second(self) -> float:
        """What computing reaches of the peak."""
        return self.flop_per_second * self.flop_share


@dataclass(frozen=True)
class Calibration:
    """Seconds of host time that is not hidden, by the terms of ``HOST_TERMS``.

    ``band``: worst relative error of a speed-up among the rows that were never used to fit.
    """

    host_seconds: Mapping[str, float]
    band: float
    source: str

    def host(self, counts: Mapping[str, float]) -> float:
        """Host time of a step with so many of each term, and what a user's result moved it by."""
        seconds = sum(self.host_seconds[name] * number for name, number in counts.items())
        return max(0.0, seconds + self.host_seconds.get("measured", 0.0))


def read_device(chip: str) -> Device:
    """The profile of a chip of ``CHIPS``."""
    profile = json.loads((FOLDER / "devices.json").read_text(encoding="utf-8"))
    numbers = {**profile["chips"][chip], **profile["both"]}
    return Device(**{name: number["value"] for name, number in numbers.items()})


def read_calibration() -> Calibration:
    """What was fitted to the published figures (``benchmarks/prediction.py`` writes it)."""
    fitted = json.loads((FOLDER / "calibrated.json").read_text(encoding="utf-8"))
    return Calibration(fitted["host_seconds"], fitted["band"], fitted["source"])
