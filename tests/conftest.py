# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

# No deadline: a machine that runs two test processes beside something else is slow now and then,
# which is no defect. The same examples on every run where a failure cannot be looked into at once.
settings.register_profile("house", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("house")

EMULATED = Path(__file__).parent / "emulated"
# Parts of tests/emulated that test the emulated NPU itself, and so mean nothing on hardware.
OF_THE_EMULATOR = (
    "device",
    "test_collectives.py",
    "test_stand_ins.py",
    "test_tiny_models.py",
    "test_triton.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the plugin with ``npu``: they run on hardware as they are."""
    for item in items:
        if EMULATED not in item.path.parents:
            continue
        if item.path.relative_to(EMULATED).parts[0] not in OF_THE_EMULATOR:
            item.add_marker(pytest.mark.npu)
