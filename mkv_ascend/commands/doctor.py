# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend doctor``: versions, device, platform and ops of this host, and what is wrong.

``python -m mkv_ascend.commands.doctor`` is its probe: it loads torch_npu and vLLM's platform in a
process of its own, because vLLM keeps what it finds, prints logs, and may end the process.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping
from importlib import metadata
from typing import Any

import mkv_ascend
from mkv_ascend import envs
from mkv_ascend.adapters import host_probe
from mkv_ascend.adapters.contract import PLATFORM
from mkv_ascend.adapters.installed import PACKAGES, adapter_for, version_problem
from mkv_ascend.child_process import run_module
from mkv_ascend.commands import emulate
from mkv_ascend.host_versions import dropped_general_plugins, installed_version
from mkv_ascend.plain_text import plain_json

HELP = "say what is installed, which device and platform are in use, and what is wrong"

DESCRIPTION = """\
Looks at this environment as vLLM would see it. Run it the way you run vLLM: on an Ascend host as it
is, elsewhere as `mkv-ascend emulate -- mkv-ascend doctor`. Exit status 0: nothing is wrong.
"""

IMPORTED_LATE = ("numba", "scipy", "pandas", "transformers")
"""Modules that vllm-ascend needs, but whose absence only shows when a worker loads a model."""
GROUPS = ("vllm.platform_plugins", "vllm.general_plugins")
"""Entry points of vLLM's plugins."""
NO_KERNELS = "none: "
"""What an op's entry begins with when nothing serves it; the reason follows."""
PROBE_SECONDS = 120
NOTHING: Mapping[str, Any] = {
    "device": "none",
    "platform": None,
    "torch_npu": None,
    "ops": {},
    "emulator": {},
    "error": None,
}
"""What the probe tells: ``error`` keeps vLLM from starting."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of ``mkv-ascend doctor``."""
    parser.description = DESCRIPTION
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; returns 0 when nothing is wrong."""
    diagnosis = diagnose()
    print(plain_json(diagnosis) if arguments.json else describe(diagnosis))
    return 1 if diagnosis["problems"] else 0


def diagnose() -> dict[str, Any]:
    """All that is found, as ``--json`` prints it; versions are None for what is missing."""
    found = _probe()
    versions = {name: installed_version(name) for name in PACKAGES}
    return {
        "device": found["device"],
        "platform": found["platform"],
        "mkv_ascend": mkv_ascend.__version__,
        "python": platform.python_version(),
        "torch": installed_version("torch"),
        "torch_npu": found["torch_npu"],
        "vllm": versions["vllm"],
        "vllm_ascend": versions["vllm-ascend"],
        "plugins": {
            group: sorted(point.name for point in metadata.entry_points(group=group))
            for group in GROUPS
        },
        "vllm_plugins": os.environ.get("VLLM_PLUGINS"),
        "ops": found["ops"],
        "emulator": found["emulator"],
        "problems": list(_problems(versions, found)),
    }


def _probe() -> dict[str, Any]:
    try:
        done = run_module(__name__, "", os.environ, PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return {**NOTHING, "error": f"no answer of the probe in {PROBE_SECONDS} s"}
    answers = [line for line in done.stdout.splitlines() if line.startswith('{"device"')]
    if done.returncode == 0 and answers:
        found: dict[str, Any] = json.loads(answers[-1])
        return found
    said = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
    return {**NOTHING, "error": said[-1]}


def _problems(versions: dict[str, str | None], found: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong, with what to do."""
    if (wrong_pair := version_problem(versions)) is not None:
        yield wrong_pair
    missing = [name for name in IMPORTED_LATE if importlib.util.find_spec(name) is None]
    if missing:
        yield (
            f"vllm-ascend needs {', '.join(missing)}, which a worker would miss when it loads a "
            f"model: pip install {' '.join(missing)}"
        )
    yield from envs.unknown_variables()
    if emulate.is_installed():
        from emulated_npu import variables

        yield from variables.unknown_variables()
    # With the wrong versions vLLM refuses to start: one problem, not two.
    if adapter_for(versions) is not None:
        yield from _start_problems(found)
        # A list that leaves us out is one problem, too.
        yield from _dropped_plugins() if found["platform"] == PLATFORM else ()
    yield from _op_problems(found["ops"])
    # On an NPU plain torch costs launches in every step.
    slow = all(served.startswith("reference") for served in found["ops"].values())
    if found["device"] == "npu" and found["ops"] and slow:
        yield "all custom ops run as reference: build their kernels (docs/ops/index.md)"


def _start_problems(found: Mapping[str, Any]) -> Iterator[str]:
    if found["error"] is not None:
        yield f"vLLM cannot start: {found['error']}"
    elif found["platform"] != PLATFORM:
        yield (
            f"vLLM runs on {found['platform']}, not on {PLATFORM}: this plugin has no effect. "
            "VLLM_PLUGINS must be unset or name mkv_ascend."
        )
    elif found["device"] == "none":
        yield (
            f"torch_npu {found['torch_npu']} is installed but sees no NPU: check npu-smi info, the "
            "driver, and ASCEND_RT_VISIBLE_DEVICES"
        )


def _dropped_plugins() -> Iterator[str]:
    """General plugins of vllm-ascend that ``VLLM_PLUGINS`` leaves out."""
    allowed = os.environ.get("VLLM_PLUGINS")
    if dropped := dropped_general_plugins(allowed):
        whole = ",".join([*filter(None, (allowed or "").split(",")), *dropped])
        yield (
            f"VLLM_PLUGINS leaves out {', '.join(dropped)} of vllm-ascend: their models, loaders "
            f"and KV connectors are not there. Unset VLLM_PLUGINS, or set VLLM_PLUGINS={whole}"
        )


def _op_problems(ops: Mapping[str, str]) -> Iterator[str]:
    """What keeps ops from running, once for all ops that it concerns."""
    reasons: dict[str, list[str]] = {}
    for name, served in ops.items():
        if served.startswith(NO_KERNELS):
            reasons.setdefault(served.removeprefix(NO_KERNELS), []).append(name)
    for reason, names in reasons.items():
        yield f"Nothing serves {', '.join(names)}: {reason}"


def describe(diagnosis: Mapping[str, Any]) -> str:
    """The findings as text."""
    device = {"emulated": "emulated NPU (not a real Ascend device)"}
    rows = {
        "device": device.get(diagnosis["device"], diagnosis["device"]),
        "platform": diagnosis["platform"] or "none",
        "mkv_ascend": diagnosis["mkv_ascend"],
        **{
            name: diagnosis[name] or "missing"
            for name in ("vllm", "vllm_ascend", "torch", "torch_npu")
        },
        "python": diagnosis["python"],
        **{group: ", ".join(names) or "none" for group, names in diagnosis["plugins"].items()},
        "VLLM_PLUGINS": diagnosis["vllm_plugins"] or "unset",
        **{f"op {name}": value for name, value in diagnosis["ops"].items()},
        **{f"emulator {name}": value for name, value in diagnosis["emulator"].items()},
    }
    width = max(map(len, rows))
    lines = [f"{name:<{width}}  {value}" for name, value in rows.items()]
    if not diagnosis["problems"]:
        return "\n".join([*lines, "", "nothing is wrong"])
    return "\n".join([*lines, "", "problems:", *(f"- {text}" for text in diagnosis["problems"])])


def _device() -> tuple[str, str | None]:
    """``npu``, ``emulated`` or ``none``, and the version of torch_npu."""
    if importlib.util.find_spec("torch_npu") is None:
        return "none", None
    import torch

    version = host_probe.torch_npu_version()
    if host_probe.is_emulated():
        return "emulated", version
    available = getattr(torch, "npu").is_available()  # noqa: B009 - torch_npu adds it
    return ("npu" if available else "none"), version


def _emulator(device: str) -> dict[str, str]:
    """Whether its native part is built, and how many operators it has."""
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

    counts = Counter(entry.namespace for entry in registry.OPERATORS.values())
    operators = ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
    return {"native part": "built", "operators": operators}


def _ops() -> dict[str, str]:
    """What serves each custom op, and why."""
    if importlib.util.find_spec("torch") is None:
        return {}
    from mkv_ascend import ops
    from mkv_ascend.ops import implementations

    try:
        choice = implementations.for_npu() or implementations.for_cpu()
        ops.load_all()
    except implementations.KernelsMissingError as error:
        return dict.fromkeys(ops.NAMES, f"{NO_KERNELS}{error}")
    return {name: str(choice) for name in ops.NAMES}


def probe() -> dict[str, Any]:
    """What only torch_npu and vLLM tell; what keeps vLLM from starting is told as well."""
    device, version = _device()
    found = {**NOTHING, "device": device, "torch_npu": version}
    try:
        found["platform"] = host_probe.active_platform()
    except SystemExit as refusal:
        found["error"] = str(refusal)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return {**found, "ops": _ops(), "emulator": _emulator(device)}


if __name__ == "__main__":
    print(json.dumps(probe()))
