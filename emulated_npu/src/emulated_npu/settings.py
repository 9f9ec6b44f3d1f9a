# SPDX-License-Identifier: Apache-2.0
"""The settings of this process's emulated NPU, read once from the environment."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from emulated_npu import variables


@dataclass(frozen=True)
class EmulatorSettings:
    """What the launcher was asked for.

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
        """The settings in ``environment``, by default of this process.

        Raises VariableError for a value that is not allowed.
        """
        return cls(
            devices=variables.DEVICES.get(environment),
            memory_bytes=variables.MEMORY.get(environment),
            strict=variables.STRICT.get(environment),
            float32_compute=variables.FLOAT32_COMPUTE.get(environment),
            has_triton=variables.TRITON.get(environment),
            report_counters=variables.COUNTERS.get(environment),
        )


@functools.cache
def settings() -> EmulatorSettings:
    """The settings of this process: read at the first call and then fixed."""
    return EmulatorSettings.from_environment()
