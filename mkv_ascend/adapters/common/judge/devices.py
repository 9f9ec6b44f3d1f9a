# SPDX-License-Identifier: Apache-2.0
"""The devices of this process, without starting a driver's context."""

from __future__ import annotations

from mkv_ascend.attention import catalog
from mkv_ascend.attention.entry import DeviceGeneration
from mkv_ascend.rules.facts import EMULATED, DeviceFacts

MOST_MEMORY = {DeviceGeneration.A2: 64 << 30, DeviceGeneration.A3: 64 << 30}
"""Bytes of a device's memory that no smaller request can exceed: asking would start the driver."""

_judged_for: DeviceFacts | None = None


def judge_for(given: DeviceFacts) -> None:
    """Let ``devices`` answer so: this process judges a command for other devices than its own."""
    global _judged_for
    _judged_for = given


def devices() -> DeviceFacts:
    """The devices that a configuration of this process is judged for."""
    # Imports of vLLM go in circles where the platform is imported.
    import torch_npu
    from vllm import envs as vllm_envs
    from vllm_ascend.utils import get_ascend_device_type

    if _judged_for is not None:
        return _judged_for
    generation = DeviceGeneration(get_ascend_device_type().name.lstrip("_"))
    emulated = hasattr(torch_npu, "emulated_extra_dtypes")
    return DeviceFacts(
        count=torch_npu.npu.device_count(),
        memory_bytes=getattr(torch_npu, "emulated_memory_bytes", MOST_MEMORY.get(generation)),
        generation=generation,
        source=EMULATED if emulated else "visible NPUs",
        extra_dtypes=getattr(torch_npu, "emulated_extra_dtypes", frozenset()),
        modules=catalog.installed_modules(),
        batch_invariant=bool(vllm_envs.VLLM_BATCH_INVARIANT),
    )
