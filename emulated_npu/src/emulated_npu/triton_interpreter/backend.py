# SPDX-License-Identifier: Apache-2.0
"""The Triton driver of the emulated device: one active driver is what vLLM calls ``HAS_TRITON``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

CUBE_CORES = 20
VECTOR_CORES = 40
"""Cores of an Ascend910B4; vllm-ascend sizes the grids of its kernels by them."""

UNIFIED_BUFFER_BYTES = 192 << 10
"""Local memory of a vector core; vllm-ascend 0.30 sizes the blocks of its kernels by it."""


def _npu() -> ModuleType:
    """The module torch.npu, which exists once torch_npu was imported."""
    return getattr(torch, "npu")  # noqa: B009 (a name that type checkers do not know)


class EmulatedDriverUtilities:
    """What triton-ascend's driver tells about the device."""

    @staticmethod
    def get_device_properties(_device: int) -> dict[str, int]:
        return {"num_aicore": CUBE_CORES, "num_vectorcore": VECTOR_CORES}


class EmulatedDriver:
    """The part of Triton's DriverBase that is asked without compiling a kernel."""

    utils = EmulatedDriverUtilities()

    @staticmethod
    def is_active() -> bool:
        return True

    def get_current_device(self) -> int:
        return _npu().current_device()

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget(backend="npu", arch="Ascend910B4", warp_size=1)

    def get_device_interface(self) -> ModuleType:
        return _npu()

    def get_active_torch_device(self) -> torch.device:
        return torch.device("npu", _npu().current_device())

    def get_benchmarker(self) -> Callable[..., tuple[float, ...]]:
        """No kernel is timed here: to autotuning all configurations are as fast, the first wins."""
        return lambda kernel, quantiles=(0.5, 0.2, 0.8), **_: (0.0,) * len(quantiles)


@dataclass(frozen=True)
class EmulatedBackend:
    """Entry of ``triton.backends``; without a compiler, since kernels are interpreted."""

    driver: type[EmulatedDriver]
    compiler: None = None


def install(backends: ModuleType) -> None:
    """Leave the emulated device as the only backend of ``triton.backends``."""
    backends.backends.clear()
    backends.backends["npu"] = EmulatedBackend(driver=EmulatedDriver)


def time_without_driver(autotuner: ModuleType) -> None:
    """Autotuned kernels that run even where vLLM finds no Triton time nothing there, either."""
    timed = property(lambda _: EmulatedDriver().get_benchmarker())
    autotuner.Autotuner.do_bench = timed
