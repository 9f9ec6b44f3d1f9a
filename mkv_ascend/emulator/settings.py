# SPDX-License-Identifier: Apache-2.0
"""The settings of this process's emulated NPU, read once from the environment."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from mkv_ascend import envs


@dataclass(frozen=True)
class EmulatorSettings:
    """What ``mkv-ascend emulate`` was asked for.

    devices: number of npu devices. memory_bytes: memory of each. strict: refuse what operators do
    not document. float32_compute: the one relaxation of strict mode, float32 where float16 and
    bfloat16 are documented. has_triton: what vLLM's HAS_TRITON says. report_counters: print the
    counters at exit.
    """

    devices: int
    memory_bytes: int
    strict: bool
    float32_compute: bool
    has_triton: bool
    report_counters: bool

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> EmulatorSettings:
        """The settings in ``environment`` (default: of this process), with the defaults of envs.

        Raises EnvironmentVariableError for a value that is not allowed.
        """
        return cls(
            devices=envs.EMULATOR_DEVICES.get(environment),
            memory_bytes=envs.EMULATOR_MEMORY.get(environment),
            strict=envs.EMULATOR_STRICT.get(environment),
            float32_compute=envs.EMULATOR_FLOAT32_COMPUTE.get(environment),
            has_triton=envs.EMULATOR_TRITON.get(environment),
            report_counters=envs.EMULATOR_COUNTERS.get(environment),
        )


@functools.cache
def settings() -> EmulatorSettings:
    """The settings of this process: read at the first call and then fixed."""
    return EmulatorSettings.from_environment()
