# SPDX-License-Identifier: Apache-2.0
"""Which adapter serves the installed vLLM and vllm-ascend.

It is chosen by the versions alone; ``plugin/versions.py`` also compares the sources.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from mkv_ascend.adapters.contract import HostAdapter
from mkv_ascend.adapters.refusal import StartUpRefused
from mkv_ascend.host_versions import installed_version
from mkv_ascend.rules.facts import HostRules

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
