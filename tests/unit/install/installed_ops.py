# SPDX-License-Identifier: Apache-2.0
"""Run in a process of its own on a stand-in host: the ops that are installed there.

Before a launch the stand-in of CANN gets the list of what it may touch; anything else stops it.
"""

import ctypes
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
import torch_npu  # noqa: F401 - the stand-in, as vllm-ascend imports the real one
from hypothesis import settings

from mkv_ascend import ops
from mkv_ascend.ops import implementations

# As in tests/conftest.py, before the tests are imported: no timing is asserted.
settings.register_profile("repository", deadline=None, derandomize=True)
settings.load_profile("repository")

ascendcl = ctypes.CDLL("libascendcl.so")


def tensors(given: Any) -> list[torch.Tensor]:
    if isinstance(given, torch.Tensor):
        return [given]
    return [one for part in given for one in tensors(part)] if isinstance(given, list) else []


def installed(name: str) -> Callable[..., None]:
    """An op of the installed library for tensors of the host."""
    kernel = getattr(torch.ops.mkv_ascend_npu, name)

    def run(*arguments: Any) -> None:
        ascendcl.stand_in_clear()
        for tensor in tensors(list(arguments)):
            storage = tensor.untyped_storage()
            ascendcl.stand_in_tensor(
                ctypes.c_void_p(storage.data_ptr()), ctypes.c_uint64(storage.nbytes()), 1
            )
        kernel(*arguments)

    return run


def load() -> None:
    """Load the ops as a worker does, and have their functions call the installed library."""
    print(implementations.for_npu())
    ops.load_all()
    for name in ops.NAMES:
        dispatched = torch._C._dispatch_dump(f"mkv_ascend::{name}")
        assert "PrivateUse1: registered at" in dispatched, dispatched
        import_module(f"mkv_ascend.ops.{name}")._op = installed(name)


def compare() -> None:
    """The tests of all ops against plain loops, on the installed library."""
    for name in ops.NAMES:
        import_module(f"tests.unit.ops.test_{name}").test_as_plain_loops()
        print(f"{name} is right")
    print("allocations:", ascendcl.stand_in_allocations())


def launch_once() -> None:
    """One block of a cache to zero; prints the result."""
    from mkv_ascend.ops.zero_blocks import page_table, zero_blocks

    cache = torch.ones((4, 8))
    try:
        zero_blocks(torch.tensor([2]), [cache], page_table([cache]))
    except RuntimeError as error:
        print("raised:", str(error).splitlines()[0])
    print("sum:", int(cache.sum()))
