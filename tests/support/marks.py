# SPDX-License-Identifier: Apache-2.0
"""Marks of tests that ask the device of the process which collects them."""

from __future__ import annotations

import pytest

from tests.support import engine

# Unit tests import most of tests/support and have no device, so this stands by itself.
needs_float32 = pytest.mark.skipif(
    engine.compared_dtype() != "float32",
    reason="in 16 bits too many choices are near ties to tell what an engine must do",
)
