# SPDX-License-Identifier: Apache-2.0
"""Whether tests run on the emulated NPU, without importing it: hardware may not have it."""

from __future__ import annotations

import os

ON_EMULATOR = bool(os.environ.get("EMULATED_NPU_DEVICES"))
