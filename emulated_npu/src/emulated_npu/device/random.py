# SPDX-License-Identifier: Apache-2.0
"""Random numbers of ``torch.npu``.

A generator of the emulated device draws what a CPU generator of the same seed draws (see
emulated_npu/csrc/generator.h). A real NPU draws other numbers from the same seed.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from emulated_npu.device.devices import DeviceLike, device_count, device_index
from emulated_npu.device.native import default_generator


def generator_of(device: DeviceLike = None) -> torch.Generator:
    """The generator that operators of the device use when they are given none."""
    return default_generator(device_index(device))


def manual_seed(seed: int) -> None:
    """Seed the current device."""
    generator_of().manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    for index in range(device_count()):
        generator_of(index).manual_seed(int(seed))


def seed() -> None:
    """Seed the current device with a number that is not deterministic."""
    generator_of().seed()


def seed_all() -> None:
    """Seed all devices with one number that is not deterministic."""
    generator_of(0).seed()
    manual_seed_all(generator_of(0).initial_seed())


def initial_seed() -> int:
    return generator_of().initial_seed()


def get_rng_state(device: DeviceLike = "npu") -> torch.Tensor:
    """State of the device's generator: a uint8 CPU tensor."""
    return generator_of(device).get_state()


def set_rng_state(new_state: torch.Tensor, device: DeviceLike = "npu") -> None:
    generator_of(device).set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    return [get_rng_state(index) for index in range(device_count())]


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    for index, state in enumerate(new_states):
        set_rng_state(state, index)
