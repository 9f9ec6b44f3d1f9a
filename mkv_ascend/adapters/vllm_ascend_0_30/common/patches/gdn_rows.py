# SPDX-License-Identifier: Apache-2.0
"""Where rows of gated delta nets are padded to the width of a verification."""

from __future__ import annotations

from mkv_ascend.adapters.common.patches import gdn_rows


def install() -> None:
    """Replace vllm-ascend's methods, where the device has them. Idempotent."""
    from vllm_ascend.device.hardware_profile import (
        HardwareCapability,
        get_current_hardware_profile,
    )

    if get_current_hardware_profile().supports(HardwareCapability.GDN_COMPATIBILITY):
        return  # the 310P has a builder and layers of its own
    gdn_rows.apply()
