# SPDX-License-Identifier: Apache-2.0
"""torch_npu.multiprocessing.reductions: device memory shared between processes, not emulated."""

from __future__ import annotations

from typing import NoReturn


def rebuild_npu_tensor(*_args: object, **_kwargs: object) -> NoReturn:
    raise NotImplementedError(
        "emulated NPU has no memory shared between processes "
        "(torch_npu.multiprocessing.reductions.rebuild_npu_tensor); copy the tensor to the host"
    )
