# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from tests.support.programs import with_repository

# No deadline, and no time for drawing examples: a machine that runs two test processes beside
# something else is slow now and then, which is no defect. The same examples on every run where a
# failure cannot be looked into at once.
settings.register_profile(
    "repository",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
)
settings.load_profile("repository")

# Programs of tests are processes of their own, some of them in other folders.
os.environ.update(with_repository(os.environ))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first: two processes take files in turn, and end together then."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
