# SPDX-License-Identifier: Apache-2.0
"""acl, the Python interface of CANN's runtime: importable, each of its functions fails by name.

vllm-ascend imports ``acl.rt.memcpy`` at start-up, for its sleep mode, which is not emulated.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

from emulated_npu.host_check import refuse_real_ascend


def install(acl: ModuleType) -> None:
    """Fill the module ``acl``: one submodule, ``acl.rt``."""
    refuse_real_ascend()
    runtime = ModuleType("acl.rt", "Emulated acl.rt: every function fails by name.")
    runtime.__getattr__ = _missing_runtime_function  # type: ignore[method-assign]
    acl.rt = runtime  # type: ignore[attr-defined]
    sys.modules["acl.rt"] = runtime


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
