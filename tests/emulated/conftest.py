# SPDX-License-Identifier: Apache-2.0
"""Tests that need npu devices: emulated ones here, real ones on an Ascend host."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import torch

from tests.support import hosts
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


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the marks of a test say what is asked with ``-m``, on this host and for this case.

    Tests of the plugin are marked with ``npu``: they run on hardware as they are. What names
    another host is run nightly here.
    """
    for item in items:
        if HERE not in item.path.parents:
            continue
        case = item.name.partition("[")[2].removesuffix("]")
        item.own_markers[:] = [mark for mark in item.own_markers if is_for(mark, case)]
        if not of_the_emulator(item.path):
            item.add_marker(pytest.mark.npu)
        if not runs_on(hosts.VLLM_ASCEND, item.iter_markers("host")):
            item.add_marker(pytest.mark.nightly("of another host"))


def is_for(mark: pytest.Mark, case: str) -> bool:
    """Whether a mark is for a case of a test: for all, unless it has patterns in ``cases``."""
    patterns = mark.kwargs.get("cases")
    return patterns is None or any(case == one or fnmatchcase(case, one) for one in patterns)


def runs_on(release: str, marks: Iterable[pytest.Mark]) -> bool:
    """Whether every mark that names hosts (``0.23``) names that of a release (``0.23.0``)."""
    return all(release.startswith(mark.args) for mark in marks)
