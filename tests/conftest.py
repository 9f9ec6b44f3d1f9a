# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: a machine that runs two test processes beside something else is slow now and then,
# which is no defect. The same examples on every run where a failure cannot be looked into at once.
settings.register_profile("house", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("house")
