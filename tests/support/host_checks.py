# SPDX-License-Identifier: Apache-2.0
"""What a host's checks say of an engine, whichever host is installed."""

from __future__ import annotations

from typing import Any

from mkv_ascend.adapters import installed as installed_host
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.checks.facts import DeviceFacts
from mkv_ascend.checks.gathering import gather
from mkv_ascend.checks.host_rules import HostRules
from mkv_ascend.checks.judging import refusals

DEVICE = DeviceFacts(8, 64 << 30, DeviceGeneration.A2, "a test")
RULES = {adapter.FINGERPRINTS.parent.name: adapter.RULES for adapter in installed_host.adapters()}
SHARED = RULES["vllm_ascend_0_23"]
EQUAL_PAGES = RULES["vllm_ascend_0_30"]


def refused(
    engine: dict[str, Any], rules: HostRules, device: DeviceFacts = DEVICE
) -> dict[str, str]:
    """Code -> what is said."""
    return {found.code: str(found) for found in refusals(gather(engine, device, rules))}
