# SPDX-License-Identifier: Apache-2.0
"""Devices of ``torch.npu``: how many, which one is current, what they are.

The functions below ``torch._C`` are those that ``torch.accelerator`` is made of. They are called
directly, because ``torch.accelerator`` asks this module back, and vllm-ascend replaces parts of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import torch

from emulated_npu.settings import settings

SOC_VERSION = 220
"""Ascend910B1 in the numbering of ``aclrtGetSocName``; vllm-ascend takes 220 to 225 for A2."""

DEVICE_NAME = "Ascend910B4"

DeviceLike: TypeAlias = "int | str | torch.device | None"


def device_index(device: DeviceLike = None) -> int:
    """The index of ``device``: an int, "npu", "npu:1", a torch.device; None is the current one."""
    if device is None:
        return torch._C._accelerator_getDeviceIndex()
    if isinstance(device, int):
        return torch._C._accelerator_getDeviceIndex() if device < 0 else device
    as_device = torch.device(device)
    if as_device.type != "npu":
        raise ValueError(f"expected an npu device, got {device!r}")
    # torch's stubs call the index an int, but it is None in torch.device("npu").
    index = cast("int | None", as_device.index)
    return torch._C._accelerator_getDeviceIndex() if index is None else index


_get_device_index = device_index  # the name that torch.utils.backend_registration looks for


def init() -> None:
    """Does nothing: the device is ready once torch_npu is imported."""


_lazy_init = init


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return settings().devices


def current_device() -> int:
    return torch._C._accelerator_getDeviceIndex()


def set_device(device: DeviceLike) -> None:
    """Make ``device`` current for this thread; RuntimeError when there is no such device."""
    torch._C._accelerator_setDeviceIndex(device_index(device))


def _exchange_device(index: int) -> int:
    """Make ``index`` current (nothing when negative); returns the previous index."""
    previous = current_device()
    if index >= 0:
        set_device(index)
    return previous


_maybe_exchange_device = _exchange_device


class device:
    """Context in which another device is current; nothing changes for None or a negative index."""

    def __init__(self, device: Any) -> None:
        self.idx = device_index(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = _exchange_device(self.idx)

    def __exit__(self, *exception: object) -> None:
        _exchange_device(self.prev_idx)


class device_of(device):
    """Context in which the device of a tensor is current."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__(tensor.device if tensor.device.type == "npu" else None)


def synchronize(device: DeviceLike = None) -> None:
    """Wait for the device: every operator has ended when its call returned.

    RuntimeError while a graph is captured or waits for an event: such work never ends by waiting.
    """
    torch._C._accelerator_synchronizeDevice(device_index(device))


@dataclass(frozen=True)
class DeviceProperties:
    """Properties of an Ascend910B4 with the memory that the emulator was given, in bytes."""

    name: str
    total_memory: int
    cube_core_num: int = 20
    vector_core_num: int = 40
    multi_processor_count: int = 20
    L2_cache_size: int = 192 * 2**20
    uuid: str | None = None


def get_device_properties(device: DeviceLike = None) -> DeviceProperties:
    return DeviceProperties(name=DEVICE_NAME, total_memory=settings().memory_bytes)


def get_device_name(device: DeviceLike = None) -> str:
    return DEVICE_NAME


def get_device_capability(device: DeviceLike = None) -> None:
    """None, as torch_npu answers: an Ascend device has no compute capability."""


def get_soc_version() -> int:
    return SOC_VERSION


def can_device_access_peer(device: DeviceLike, peer_device: DeviceLike) -> bool:
    return True


def is_bf16_supported() -> bool:
    return True


def get_amp_supported_dtype() -> list[torch.dtype]:
    return [torch.float16, torch.bfloat16]


def utilization(device: DeviceLike = None) -> int:
    """Always 0: an emulated device does nothing between calls."""
    return 0


def _is_in_bad_fork() -> bool:
    """False: the device's memory is host memory, which a forked child may use."""
    return False


def set_compile_mode(**mode: Any) -> None:
    """Accepts and ignores how kernels are compiled: no kernel is."""


def set_option(option: dict[str, Any]) -> None:
    """Accepts and ignores CANN's options: they choose between kernels that give the same result."""
