# SPDX-License-Identifier: Apache-2.0
"""The least that a forward must read and compute, of the share of a model on one rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from mkv_ascend.advice.device import Device

__all__ = ["Cost", "Experts", "Forward", "LayerWork", "ModelWork", "Part", "batch", "forward"]

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
        return _seconds(self.bytes, self.flop, self.starts, device)


class Part(NamedTuple):
    """Of a batch: ``requests`` requests with ``tokens`` tokens each behind so much ``context``."""

    requests: float
    tokens: float
    context: float


AnyPart = tuple[float, float, float]
"""A ``Part``, or in its place the plain values, which are made in half the time."""


def forward(
    model: ModelWork, device: Device, requests: float, tokens: float, context: float
) -> Cost:
    """A forward of ``tokens`` tokens of each of ``requests`` requests behind so much context."""
    return batch(model, device, [Part(requests, tokens, context)])


def batch(model: ModelWork, device: Device, parts: Sequence[Part]) -> Cost:
    """One forward of all parts: weights are read once."""
    return Forward(model, device).cost(parts)


class Forward:
    """Forwards of one model on one device: what is the same in each of them is worked out once.

    A simulation asks for millions of them.
    """

    def __init__(self, model: ModelWork, device: Device) -> None:
        self._device = device
        self._head = model.head
        self._head_bytes = model.head * model.weight_bytes
        self._expert_bytes = model.expert_bytes
        self._starts = device.cube_seconds + device.vector_seconds
        self._layers = []
        for layer, count in model.unlike_layers:
            weight_bytes = layer.weights * model.weight_bytes
            moved, updated = 2 * layer.state, 4 * layer.state
            self._layers.append((layer, count, weight_bytes, moved, updated))
            start = layer.cube * device.cube_seconds + layer.vector * device.vector_seconds
            start += layer.communication * device.communication_seconds
            self._starts += count * start

    def cost(self, parts: Sequence[AnyPart]) -> Cost:
        """Of one forward of all parts."""
        return Cost(*self._reads_and_computes(parts), self._starts)

    def seconds(self, parts: Sequence[AnyPart]) -> float:
        """How long one forward of all parts takes."""
        read, flop = self._reads_and_computes(parts)
        return _seconds(read, flop, self._starts, self._device)

    def _reads_and_computes(self, parts: Sequence[AnyPart]) -> tuple[float, float]:
        """Bytes and operations."""
        rows = 0.0
        for requests, tokens, _ in parts:
            rows += requests * tokens
        read = self._head_bytes
        flop = 2 * rows * self._head
        for layer, count, of_layer, moved, updated in self._layers:
            computed = 2 * rows * layer.weights
            window, cache, pair_flop = layer.window, layer.cache, layer.pair_flop
            for requests, tokens, context in parts:
                seen = window if 0 < window < context else context
                of_layer += requests * (seen * cache + moved) * CACHE_BYTES
                computed += requests * tokens * (seen * pair_flop + updated)
            if (experts := layer.experts) is not None:
                of_layer += experts.touched(rows) * experts.elements * self._expert_bytes
                computed += 2 * rows * experts.chosen * experts.elements
            read += count * of_layer
            flop += count * computed
        return read, flop


def _seconds(read: float, flop: float, starts: float, device: Device) -> float:
    reading = read / device.reached_bytes_per_second
    computing = flop / device.reached_flop_per_second
    return (reading if reading > computing else computing) + starts
