# SPDX-License-Identifier: Apache-2.0
"""The least that a forward must read and compute, of the share of a model on one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from mkv_ascend.advice.device import Device

__all__ = ["Cache", "Cost", "Experts", "LayerWork", "ModelWork", "Weights", "Works", "forward"]


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
