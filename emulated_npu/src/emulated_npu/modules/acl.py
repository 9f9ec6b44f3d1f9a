# SPDX-License-Identifier: Apache-2.0
"""acl, the Python interface of CANN's runtime: ``acl.rt.memcpy``; all else fails by name.

vllm-ascend's sleep mode copies weights to the host with it, and back.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

from emulated_npu import counters
from emulated_npu.host_check import refuse_real_ascend

INVALID_PARAMETER = 100000
"""ACL_ERROR_INVALID_PARAM of CANN's acl_base.h."""
DEVICE_TO_HOST = 2
"""ACL_MEMCPY_DEVICE_TO_HOST of CANN's acl_rt.h; host to device is 1."""


def install(acl: ModuleType) -> None:
    """Fill the module ``acl``: one submodule, ``acl.rt``."""
    refuse_real_ascend()
    runtime = ModuleType("acl.rt", "Emulated acl.rt: memcpy; any other function fails by name.")
    runtime.memcpy = memcpy  # type: ignore[attr-defined]
    runtime.__getattr__ = _missing_runtime_function  # type: ignore[method-assign]
    acl.rt = runtime  # type: ignore[attr-defined]
    sys.modules["acl.rt"] = runtime


def memcpy(destination: int, destination_bytes: int, source: int, num_bytes: int, kind: int) -> int:
    """``aclrtMemcpy``: copy ``num_bytes`` from one address to another, and wait for it.

    Args:
        destination: an address.
        destination_bytes: room there.
        source: an address.
        num_bytes: how many.
        kind: of the copy; one to the host counts as a host read.

    Returns:
        0, or CANN's error code where there is too little room.
    """
    if num_bytes > destination_bytes:
        return INVALID_PARAMETER
    ctypes.memmove(destination, source, num_bytes)
    if kind == DEVICE_TO_HOST:
        counters.record_host_read(num_bytes, asynchronous=False)
    return 0


def missing_attribute(name: str) -> Callable[..., NoReturn]:
    """``acl.<name>``: a function that raises NotImplementedError when called."""
    return _missing(f"acl.{name}", name)


def _missing_runtime_function(name: str) -> Callable[..., NoReturn]:
    return _missing(f"acl.rt.{name}", name)


def _missing(full_name: str, name: str) -> Callable[..., NoReturn]:
    if name.startswith("__"):
        raise AttributeError(name)

    def refuse(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(
            f"emulated NPU has no {full_name}: CANN's runtime is not emulated below torch_npu"
        )

    refuse.__name__ = name
    return refuse
