# SPDX-License-Identifier: Apache-2.0
"""The emulated NPU, a distribution of its own, for the commands that use it where it is there."""

from __future__ import annotations

import importlib.util

HOW_TO_INSTALL = (
    "the emulated NPU is not installed: pip install 'mkv-ascend[emulator]', or run `make setup` in "
    "a clone of mkv_ascend"
)


def is_installed() -> bool:
    """Whether ``emulated_npu`` can be imported."""
    found = importlib.util.find_spec("emulated_npu")
    # A folder of that name without __init__.py, such as a clone's, is no package.
    return found is not None and found.origin is not None
