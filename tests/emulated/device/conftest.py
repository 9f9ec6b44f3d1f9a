# SPDX-License-Identifier: Apache-2.0
"""Tests of the emulated device itself; on a real NPU there is nothing of ours to test here."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
import torch

from tests.emulated.device.graph_helpers import UpdatableGraph, updatable

# The launcher's torch_npu has installed the device; a real torch_npu has not.
collect_ignore_glob = [] if "emulated_npu.device" in sys.modules else ["test_*.py"]


@pytest.fixture
def strict_devices() -> Iterator[None]:
    """Mixed devices are refused, whatever the process was started with."""
    from emulated_npu.device import native
    from emulated_npu.settings import settings

    native.set_strict(True)
    yield
    native.set_strict(settings().strict)


@pytest.fixture
def lenient_devices() -> Iterator[None]:
    """Mixed devices are accepted, whatever the process was started with."""
    from emulated_npu.device import native
    from emulated_npu.settings import settings

    native.set_strict(False)
    yield
    native.set_strict(settings().strict)


@pytest.fixture
def memory_in_use() -> int:
    """Bytes in use on npu:0 before the test, with garbage of earlier tests gone."""
    gc.collect()
    torch.npu.reset_peak_memory_stats(0)
    return torch.npu.memory_allocated(0)


@pytest.fixture
def parts() -> Iterator[UpdatableGraph]:
    """A graph with one task that can be updated."""
    made = updatable()
    yield made
    for _ in range(3):  # lets no stream wait for later tests
        made.event.record(made.stream)
    made.event.reset()
