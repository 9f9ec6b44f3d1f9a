# SPDX-License-Identifier: Apache-2.0
"""Looks at the device and at vLLM's platform, for the doctor; prints one line of JSON.

``python -m mkv_ascend.commands.doctor_probe``, in a process of its own.
"""

from __future__ import annotations

import importlib.util
import json
from typing import Any

from mkv_ascend.adapters import host_probe
from mkv_ascend.commands import emulate


def _device() -> tuple[str, str | None]:
    """``npu``, ``emulated`` or ``none``, and the version of torch_npu."""
    spec = importlib.util.find_spec("torch_npu")
    if spec is None:
        return "none", None
    import torch

    version = host_probe.torch_npu_version()
    if host_probe.is_emulated():
        return "emulated", version
    available = getattr(torch, "npu").is_available()  # noqa: B009 - torch_npu adds it
    return ("npu" if available else "none"), version


def _emulator(device: str) -> dict[str, Any]:
    if not emulate.is_installed():
        return {"package": "not installed"}
    from emulated_npu.launch import LaunchError, require_native_extension

    try:
        require_native_extension()
    except LaunchError:
        return {"native part": "not built"}
    if device != "emulated":
        return {"native part": "built"}
    from emulated_npu.operators import registry

    counts: dict[str, int] = {}
    for entry in registry.OPERATORS.values():
        counts[entry.namespace] = counts.get(entry.namespace, 0) + 1
    operators = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return {"native part": "built", "operators": operators}


def _ops() -> dict[str, str]:
    if importlib.util.find_spec("torch") is None:
        return {}
    from mkv_ascend import ops
    from mkv_ascend.commands.doctor import NO_KERNELS
    from mkv_ascend.ops import implementations

    try:
        choice = implementations.for_npu() or implementations.for_cpu()
        ops.load_all()
    except implementations.KernelsMissingError as error:
        return dict.fromkeys(ops.NAMES, f"{NO_KERNELS}{error}")
    return {name: str(choice) for name in ops.NAMES}


def main() -> None:
    """Print the findings; what keeps vLLM from starting is one of them."""
    device, version = _device()
    found: dict[str, Any] = {"device": device, "torch_npu": version, "platform": None}
    found["error"] = None
    try:
        found["platform"] = host_probe.active_platform()
    except SystemExit as refusal:
        found["error"] = str(refusal)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    found["ops"] = _ops()
    found["emulator"] = _emulator(device)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
