# SPDX-License-Identifier: Apache-2.0
"""The least that a forward must read and compute, of the share of a model on one rank."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from mkv_ascend.advice.device import Device

__all__ = ["Cost", "Experts", "LayerWork", "ModelWork", "forward"]

CACHE_BYTES = 2
"""Of an element of keys, values and states: 16 bits."""


@dataclass(frozen=True)
class Experts:
    """Of one layer: each token takes ``chosen`` of ``count`` experts of so many ``elements``."""

    count: int
    chosen: int
    elements: float

    def touched(self, tokens: float) -> float:
        """Experts that at least one of so many tokens takes, if tokens choose evenly."""
        missed: float = (1 - self.chosen / self.count) ** tokens
        return self.count * (1 - missed)


@dataclass(frozen=True)
class LayerWork:
    """One decoder layer.

    ``weights``: elements that every token needs. ``cache``: elements that are read of each token of
    the context, at most ``window`` tokens where it is not 0. ``state``: elements of a recurrent
    state, read and written. ``pair_flop``: operations of one query with one key and value.
    ``cube``, ``vector``, ``communication``: operators that are started.
    """

    weights: float
    cache: float = 0.0
    window: int = 0
    state: float = 0.0
    pair_flop: float = 0.0
    experts: Experts | None = None
    cube: int = 5
    vector: int = 5
    communication: int = 0


@dataclass(frozen=True)
class ModelWork:
    """A model. ``head``: elements behind the layers, such as the vocabulary's.

    ``weight_bytes``, ``expert_bytes``: of one element. ``resident``: elements that are held and
    not read by each step, such as the table of embeddings.
    """

    layers: tuple[LayerWork, ...]
    head: float
    weight_bytes: float = 2.0
    expert_bytes: float = 2.0
    resident: float = 0.0

    @cached_property
    def unlike_layers(self) -> tuple[tuple[LayerWork, int], ...]:
        """Its layers that differ, each with how many there are."""
        return tuple(Counter(self.layers).items())

    @property
    def held_bytes(self) -> float:
        """Bytes of all weights."""
        dense = self.head + self.resident + sum(layer.weights for layer in self.layers)
        experts = sum(x.experts.count * x.experts.elements for x in self.layers if x.experts)
        return dense * self.weight_bytes + experts * self.expert_bytes


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
    read = model.head * model.weight_bytes
    flop = 2 * rows * model.head
    starts = device.cube_seconds + device.vector_seconds
    for layer, count in model.unlike_layers:
        seen = layer.window if 0 < layer.window < context else context
        of_layer = layer.weights * model.weight_bytes
        of_layer += requests * (seen * layer.cache + 2 * layer.state) * CACHE_BYTES
        computed = 2 * rows * layer.weights
        computed += rows * (seen * layer.pair_flop + 4 * layer.state)
        if (experts := layer.experts) is not None:
            of_layer += experts.touched(rows) * experts.elements * model.expert_bytes
            computed += 2 * rows * experts.chosen * experts.elements
        start = layer.cube * device.cube_seconds + layer.vector * device.vector_seconds
        start += layer.communication * device.communication_seconds
        read += count * of_layer
        flop += count * computed
        starts += count * start
    return Cost(read, flop, starts)
