# SPDX-License-Identifier: Apache-2.0
"""torch_npu.profiler: times on an emulated device mean nothing, so each name fails when used.

What happens on the emulated device is counted exactly; see emulated_npu.counters.
"""

from __future__ import annotations

from typing import NoReturn


def _missing(name: str) -> NoReturn:
    raise NotImplementedError(
        f"emulated NPU has no torch_npu.profiler.{name}: it has no times to measure; run "
        "'mkv-ascend emulate --counters' for exact counts of launches, host reads and copies"
    )


def profile(*_args: object, **_kwargs: object) -> NoReturn:
    _missing("profile")


def __getattr__(name: str) -> object:
    if name.startswith("__"):
        raise AttributeError(name)
    _missing(name)


__path__: list[str] = []
