# SPDX-License-Identifier: Apache-2.0
"""The one platform slot of vLLM: the stock platform is disabled, so that only ours answers."""

from __future__ import annotations

from mkv_ascend.adapters.patching import record

SLOT = record(
    name="the stock platform is disabled",
    target="vllm_ascend:register",
    writes=("__code__",),
    why="vLLM accepts one out-of-tree platform; with both installed it would refuse to start.",
    until="vLLM lets one platform plugin build on another",
    test="tests/emulated/platform/test_seat.py",
)


def _no_platform() -> None:
    """What ``vllm_ascend.register`` answers while the slot is claimed."""
    return None


def claim() -> None:
    """Make ``vllm_ascend.register`` answer None.

    The function's code is exchanged, not the module's attribute: vLLM may already hold the function
    object when the plugin is imported.

    Raises:
        ImportError: vllm-ascend cannot be imported.
        TypeError: ``register`` is no plain function, so its code cannot be exchanged.
    """
    import vllm_ascend

    register = vllm_ascend.register
    if not hasattr(register, "__code__") or register.__code__.co_freevars:
        raise TypeError("vllm_ascend.register is not a plain function any more")
    register.__code__ = _no_platform.__code__
