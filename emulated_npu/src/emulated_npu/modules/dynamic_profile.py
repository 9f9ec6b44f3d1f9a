# SPDX-License-Identifier: Apache-2.0
"""torch_npu.profiler.dynamic_profile: vllm-ascend calls ``step`` in every step of a worker."""

from __future__ import annotations

from typing import NoReturn


def step() -> None:
    """Count a step of a dynamic profile. As in torch_npu, nothing unless a profile was set up."""


def init(*_args: object, **_kwargs: object) -> NoReturn:
    _missing("init")


def start(*_args: object, **_kwargs: object) -> NoReturn:
    _missing("start")


def _missing(name: str) -> NoReturn:
    raise NotImplementedError(
        f"emulated NPU has no torch_npu.profiler.dynamic_profile.{name}; run "
        "'mkv-ascend emulate --counters' for exact counts of launches, host reads and copies"
    )
