# SPDX-License-Identifier: Apache-2.0
"""Which adapter serves the installed vLLM and vllm-ascend.

The plugin subclasses and patches internals of both, and these change with every release. On
versions or sources that it was not tested with, users could get wrong tokens. So it refuses to run
there.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import cast

from mkv_ascend.adapters.contract import HostAdapter
from mkv_ascend.adapters.fingerprints import Drift, HostSource, drifts, read
from mkv_ascend.adapters.refusal import StartUpRefused
from mkv_ascend.checks.host_rules import HostRules
from mkv_ascend.host_versions import installed_version

ADAPTERS = (
    "mkv_ascend.adapters.vllm_ascend_0_30.host",
    "mkv_ascend.adapters.vllm_ascend_0_23.host",
)
"""Modules of the adapters; importing one imports nothing of its host.

The last is the one that a user is told to install.
"""
PACKAGES = {"vllm": "vllm", "vllm-ascend": "vllm_ascend"}
"""Distribution -> package."""


def adapters() -> tuple[HostAdapter, ...]:
    """Every adapter of this release."""
    return tuple(cast("HostAdapter", import_module(name)) for name in ADAPTERS)


def installed_versions() -> dict[str, str | None]:
    """Distribution -> installed version or None, for all distributions that adapters name."""
    return {name: installed_version(name) for name in PACKAGES}


def adapter_for(installed: Mapping[str, str | None]) -> HostAdapter | None:
    """The adapter that serves these versions; None if there is none."""
    for adapter in adapters():
        if all(
            version is not None and public_version(version) in adapter.VERSIONS[name]
            for name, version in installed.items()
        ):
            return adapter
    return None


def adapter() -> HostAdapter:
    """The adapter for the installed versions.

    Raises:
        StartUpRefused: there is none; the message names the versions that have adapters.
    """
    installed = installed_versions()
    found = adapter_for(installed)
    if found is None:
        raise StartUpRefused(version_problem(installed) or "")
    return found


def rules() -> HostRules:
    """What checks must know of the installed host; of the one to install where none is served."""
    return (adapter_for(installed_versions()) or adapters()[-1]).RULES


def runners() -> tuple[str, ...]:
    """Model runners of the installed host; of the one to install where none is served."""
    return (adapter_for(installed_versions()) or adapters()[-1]).RUNNERS


def public_version(version: str) -> str:
    """A version without its local part: vLLM built from source is ``0.23.0+empty``."""
    return version.split("+", 1)[0]


def version_problem(installed: Mapping[str, str | None]) -> str | None:
    """What is wrong with the installed versions, or None.

    Args:
        installed: distribution name -> installed version or None.
    """
    if adapter_for(installed) is not None:
        return None
    found = " and ".join(f"{name} {version or 'missing'}" for name, version in installed.items())
    wanted = ", or ".join(
        " and ".join(f"{name} {' or '.join(known)}" for name, known in adapter.VERSIONS.items())
        for adapter in adapters()
    )
    pins = " ".join(f"{name}=={known[0]}" for name, known in adapters()[-1].VERSIONS.items())
    return (
        f"found {found}; this release of mkv_ascend works with {wanted} only. "
        f"Install {pins}, install the mkv_ascend release for your pair, "
        "or uninstall mkv_ascend to run without it."
    )


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
    return _drift_message(found) if found else None


def _drift_message(found: list[Drift]) -> str:
    patches = sorted({patch for drift in found for patch in drift.patches})
    names = "; ".join(
        f"{drift.name} is {'gone' if drift.found is None else 'changed'}" for drift in found
    )
    return (
        f"the installed sources are not those that this release was tested with: {names}. "
        f"Patches that no longer fit: {', '.join(map(repr, patches))}. Reinstall vllm and "
        "vllm-ascend; in a clone of mkv_ascend `python tools/port_report.py --host "
        f"{_folder()}` shows the difference"
    )


def _folder() -> str:
    spec = importlib.util.find_spec("vllm_ascend")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return str(Path(places[0]).parent) if places else "FOLDER"


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
