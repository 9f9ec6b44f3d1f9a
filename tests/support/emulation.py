# SPDX-License-Identifier: Apache-2.0
"""Whether tests run on the emulated NPU, known without it: on hardware it is not installed."""

from __future__ import annotations

import os

ON_EMULATOR = bool(os.environ.get("EMULATED_NPU_DEVICES"))
