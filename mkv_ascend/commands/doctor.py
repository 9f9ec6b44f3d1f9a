# SPDX-License-Identifier: Apache-2.0
"""``mkv-ascend doctor``: versions, device, platform and ops of this host, and what is wrong."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from typing import Any

import mkv_ascend
from mkv_ascend import envs
from mkv_ascend.adapters.contract import PLATFORM
from mkv_ascend.adapters.installed import (
    PACKAGES,
    adapter_for,
    version_problem,
)
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

NO_KERNELS = "none: "
"""What an op's entry begins with when nothing serves it; the reason follows."""

PROBE = "mkv_ascend.commands.doctor_probe"
PROBE_SECONDS = 120


@dataclass(frozen=True)
class Diagnosis:
    """All that the doctor found.

    Attributes:
        device: ``npu``, ``emulated`` or ``none``.
        platform: qualified name of vLLM's platform class, or None when vLLM cannot start.
        versions of this package, Python, torch, torch_npu, vLLM and vllm-ascend; None: missing.
        plugins: names of the plugins that vLLM discovers, per entry point group.
        vllm_plugins: the value of ``VLLM_PLUGINS``, None when unset.
        ops: what serves each custom op, and why.
        emulator: whether its native part is built, and how many operators it has.
        problems: one text each, with what to do.
    """

    device: str
    platform: str | None
    mkv_ascend: str
    python: str
    torch: str | None
    torch_npu: str | None
    vllm: str | None
    vllm_ascend: str | None
    plugins: dict[str, list[str]] = field(default_factory=dict)
    vllm_plugins: str | None = None
    ops: dict[str, str] = field(default_factory=dict)
    emulator: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Describe the options of ``mkv-ascend doctor``."""
    parser.description = DESCRIPTION
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; returns 0 when nothing is wrong."""
    diagnosis = diagnose()
    if arguments.json:
        print(plain_json(asdict(diagnosis)))
    else:
        print(describe(diagnosis))
    return 1 if diagnosis.problems else 0


def diagnose() -> Diagnosis:
    """Look at this environment."""
    probe = _probe()
    versions = {name: installed_version(name) for name in PACKAGES}
    problems = _installation_problems(versions)
    # With the wrong versions vLLM refuses to start: one problem, not two.
    host = adapter_for(versions)
    if host is not None:
        problems += _start_problems(probe, PLATFORM)
        problems += _dropped_plugins()
    problems += _op_problems(probe["ops"])
    if probe["device"] == "npu":
        problems += _slow_ops(probe["ops"])
    return Diagnosis(
        device=probe["device"],
        platform=probe["platform"],
        mkv_ascend=mkv_ascend.__version__,
        python=platform.python_version(),
        torch=installed_version("torch"),
        torch_npu=probe["torch_npu"],
        vllm=versions["vllm"],
        vllm_ascend=versions["vllm-ascend"],
        plugins=_plugins(),
        vllm_plugins=os.environ.get("VLLM_PLUGINS"),
        ops=probe["ops"],
        emulator=probe["emulator"],
        problems=problems,
    )


def _probe() -> dict[str, Any]:
    """Load torch_npu and vLLM's platform in a process of their own.

    vLLM keeps what it finds, prints logs, and may end the process: none of that is the doctor's.
    """
    try:
        done = run_module(PROBE, "", os.environ, PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return _nothing_found(f"no answer from {PROBE} in {PROBE_SECONDS} s")
    answers = [line for line in done.stdout.splitlines() if line.startswith('{"device"')]
    if done.returncode == 0 and answers:
        found: dict[str, Any] = json.loads(answers[-1])
        return found
    return _nothing_found(
        (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
    )


def _nothing_found(error: str) -> dict[str, Any]:
    return {
        "device": "none",
        "platform": None,
        "torch_npu": None,
        "ops": {},
        "emulator": {},
        "error": error,
    }


def _installation_problems(versions: dict[str, str | None]) -> list[str]:
    problems = []
    wrong_pair = version_problem(versions)
    if wrong_pair is not None:
        problems.append(wrong_pair)
    missing = [name for name in IMPORTED_LATE if importlib.util.find_spec(name) is None]
    if missing:
        problems.append(
            f"vllm-ascend needs {', '.join(missing)}, which a worker would miss when it loads a "
            f"model: pip install {' '.join(missing)}"
        )
    problems += envs.unknown_variables()
    if emulate.is_installed():
        from emulated_npu import variables

        problems += variables.unknown_variables()
    return problems


def _start_problems(probe: dict[str, Any], expected: str) -> list[str]:
    if probe["error"] is not None:
        return [f"vLLM cannot start: {probe['error']}"]
    if probe["platform"] != expected:
        return [
            f"vLLM runs on {probe['platform']}, not on {expected}: this plugin has no effect. "
            "VLLM_PLUGINS must be unset or name mkv_ascend."
        ]
    if probe["device"] == "none":
        return [
            f"torch_npu {probe['torch_npu']} is installed but sees no NPU: check npu-smi info, the "
            "driver, and ASCEND_RT_VISIBLE_DEVICES"
        ]
    return []


def _op_problems(ops: dict[str, str]) -> list[str]:
    """What keeps ops from running, once for all ops that it concerns."""
    reasons: dict[str, list[str]] = {}
    for name, served in ops.items():
        if served.startswith(NO_KERNELS):
            reasons.setdefault(served.removeprefix(NO_KERNELS), []).append(name)
    return [f"Nothing serves {', '.join(names)}: {reason}" for reason, names in reasons.items()]


def _dropped_plugins() -> list[str]:
    """General plugins of vllm-ascend that ``VLLM_PLUGINS`` leaves out."""
    allowed = os.environ.get("VLLM_PLUGINS")
    dropped = dropped_general_plugins(allowed)
    if not dropped:
        return []
    whole = ",".join([*filter(None, (allowed or "").split(",")), *dropped])
    return [
        f"VLLM_PLUGINS leaves out {', '.join(dropped)} of vllm-ascend: their models, loaders and "
        f"KV connectors are not there. Unset VLLM_PLUGINS, or set VLLM_PLUGINS={whole}"
    ]


def _slow_ops(ops: dict[str, str]) -> list[str]:
    """That on an NPU all ops run by plain torch, which costs launches in every step."""
    if not ops or not all(served.startswith("reference") for served in ops.values()):
        return []
    return ["all custom ops run as reference: build their kernels (docs/ops/index.md)"]


def _plugins() -> dict[str, list[str]]:
    groups = ("vllm.platform_plugins", "vllm.general_plugins")
    return {
        group: sorted(point.name for point in metadata.entry_points(group=group))
        for group in groups
    }


def describe(diagnosis: Diagnosis) -> str:
    """The findings as text."""
    device = {"emulated": "emulated NPU (not a real Ascend device)", "none": "none"}
    rows: Sequence[tuple[str, object]] = (
        ("device", device.get(diagnosis.device, diagnosis.device)),
        ("platform", diagnosis.platform or "none"),
        ("mkv_ascend", diagnosis.mkv_ascend),
        ("vllm", diagnosis.vllm or "missing"),
        ("vllm_ascend", diagnosis.vllm_ascend or "missing"),
        ("torch", diagnosis.torch or "missing"),
        ("torch_npu", diagnosis.torch_npu or "missing"),
        ("python", diagnosis.python),
        *((group, ", ".join(names) or "none") for group, names in diagnosis.plugins.items()),
        ("VLLM_PLUGINS", diagnosis.vllm_plugins or "unset"),
        *((f"op {name}", value) for name, value in diagnosis.ops.items()),
        *((f"emulator {name}", value) for name, value in diagnosis.emulator.items()),
    )
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    if not diagnosis.problems:
        return "\n".join([*lines, "", "nothing is wrong"])
    return "\n".join([*lines, "", "problems:", *(f"- {text}" for text in diagnosis.problems)])
