# SPDX-License-Identifier: Apache-2.0
"""The kernels are compiled once, for the checker on the CPU."""

from __future__ import annotations

import pytest

from mkv_ascend.testing.ascendc_host import HostKernels
from tests.unit.ops.ascend.kernels import build_kernels


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> HostKernels:
    return build_kernels(tmp_path_factory.mktemp("kernels"))


@pytest.fixture(scope="module", autouse=True)
def implementation() -> None:
    """The kernels are the implementation here; they are compared with the reference."""
