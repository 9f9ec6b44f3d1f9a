# SPDX-License-Identifier: Apache-2.0
"""Whether an adapter serves the installed vLLM and vllm-ascend, sources included.

The plugin subclasses and patches internals of both, and these change with every release. On
versions or sources that it was not tested with, users could get wrong tokens. So it refuses to run
there. Commands of vLLM that only talk to a server need no device (``needs_no_device``).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

from mkv_ascend.adapters.fingerprints import Drift, HostSource, drifts, read
from mkv_ascend.adapters.installed import (
    PACKAGES,
    adapter_for,
    installed_versions,
    public_version,
    version_problem,
)
from mkv_ascend.adapters.refusal import StartUpRefused


def drift_problem(installed: Mapping[str, str | None], source: HostSource) -> str | None:
    """Which patches no longer fit the installed sources, or None.

    Args:
        installed: versions that an adapter serves.
    """
    host = adapter_for(installed)
    assert host is not None
    recorded = read(host.FINGERPRINTS)
    found = [
        drift
        for name, version in installed.items()
        for drift in drifts(recorded[name][public_version(version or "")], source)
    ]
    return _drift_message(found, source) if found else None


def _drift_message(found: list[Drift], source: HostSource) -> str:
    patches = sorted({patch for drift in found for patch in drift.patches})
    names = "; ".join(
        f"{drift.name} is {'gone' if drift.found is None else 'changed'}" for drift in found
    )
    return (
        f"the installed sources are not those that this release was tested with: {names}. "
        f"Patches that no longer fit: {', '.join(map(repr, patches))}. Reinstall vllm and "
        "vllm-ascend; in a clone of mkv_ascend `python tools/port_report.py --host "
        f"{source.folders.get('vllm_ascend', 'FOLDER')}` shows the difference"
    )


def installed_source() -> HostSource:
    """The sources of the installed packages, without importing them."""
    folders = {}
    for package in PACKAGES.values():
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            folders[package] = Path(next(iter(spec.submodule_search_locations))).parent
    return HostSource(folders)


@functools.cache
def check_host() -> None:
    """Refuse to start on versions or sources that no adapter knows.

    Raises:
        StartUpRefused: the message names installed and supported versions, or the patches that do
            not fit.
    """
    installed = installed_versions()
    problem = version_problem(installed)
    if problem is None:
        problem = drift_problem(installed, installed_source())
    if problem is not None:
        raise StartUpRefused(problem)


CLIENTS = (("bench", "serve"), ("chat",), ("complete",), ("collect-env",), ("--version",), ("-v",))
"""First words after ``vllm``."""


def needs_no_device(command: Sequence[str]) -> bool:
    """Whether ``sys.argv`` is such a command of ``vllm``, or of ``python -m vllm...cli.main``."""
    program, words = PurePath(command[0] if command else ""), tuple(command[1:])
    is_vllm = program.name == "vllm" or program.parts[-3:] == ("entrypoints", "cli", "main.py")
    return is_vllm and any(words[: len(client)] == client for client in CLIENTS)
