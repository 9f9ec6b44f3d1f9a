# SPDX-License-Identifier: Apache-2.0
"""Tests that need npu devices: emulated ones here, real ones on an Ascend host."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.support.emulation import ON_EMULATOR

HOW_TO_RUN = "mkv-ascend emulate --strict --float32-compute -- pytest tests/emulated"

HERE = Path(__file__).parent
# What tests the emulated NPU itself, and so means nothing on hardware.
OF_THE_EMULATOR = ("device", "support")


def of_the_emulator(path: Path) -> bool:
    """Whether a file or folder of this folder is about the emulated NPU itself."""
    return HERE in path.parents and path.relative_to(HERE).parts[0] in OF_THE_EMULATOR


def pytest_configure(config: pytest.Config) -> None:
    npu = getattr(torch, "npu", None)
    if npu is None or not npu.is_available():
        raise pytest.UsageError(f"no npu device here; run these tests with: {HOW_TO_RUN}")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """On hardware those are not even imported: the emulator's modules are not for it."""
    return True if not ON_EMULATOR and of_the_emulator(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the plugin with ``npu``: they run on hardware as they are."""
    for item in items:
        if HERE in item.path.parents and not of_the_emulator(item.path):
            item.add_marker(pytest.mark.npu)
