# SPDX-License-Identifier: Apache-2.0
"""Tests that need npu devices: emulated ones here, real ones on an Ascend host."""

from __future__ import annotations

import pytest
import torch

HOW_TO_RUN = "mkv-ascend emulate --strict --float32-compute -- pytest tests/emulated"


def pytest_configure(config: pytest.Config) -> None:
    npu = getattr(torch, "npu", None)
    if npu is None or not npu.is_available():
        raise pytest.UsageError(f"no npu device here; run these tests with: {HOW_TO_RUN}")
