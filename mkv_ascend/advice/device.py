# SPDX-License-Identifier: Apache-2.0
"""What a chip can do (``devices.json``), and apart from it what was fitted (``calibrated.json``).

A number of the first file has its source beside it; those of the second have the rows they were
fitted to (``benchmarks/prediction.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["CHIPS", "HOST_TERMS", "Calibration", "Device", "read_calibration", "read_device"]

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
