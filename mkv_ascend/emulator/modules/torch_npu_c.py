# SPDX-License-Identifier: Apache-2.0
"""torch_npu._C: the few names that vllm-ascend takes from torch_npu's native module."""

from __future__ import annotations

from typing import NoReturn


class _NPUTaskGroupHandle:
    """Type of a task group in an ACL graph; named in annotations, never made here."""

    def __init__(self) -> None:
        raise NotImplementedError(
            "emulated NPU has no ACL graphs (torch_npu._C._NPUTaskGroupHandle); use enforce_eager"
        )


def _weak_ref_tensor(*_args: object, **_kwargs: object) -> NoReturn:
    raise NotImplementedError(
        "emulated NPU has no ACL graphs (torch_npu._C._weak_ref_tensor); use enforce_eager"
    )
