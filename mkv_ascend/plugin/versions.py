# SPDX-License-Identifier: Apache-2.0
"""The one pair of vLLM and vllm-ascend that this release is written and tested against.

The plugin subclasses and patches internals of both, which change with every release. Running
on another pair would go wrong in ways that a user sees as wrong tokens, so it is refused.
"""

from __future__ import annotations

from importlib import import_module, metadata
from typing import cast

from mkv_ascend.adapters.contract import HostAdapter
from mkv_ascend.adapters.refusal import StartUpRefused

SUPPORTED = {"vllm": "0.23.0", "vllm-ascend": "0.23.0"}


def adapter() -> HostAdapter:
    """The adapter for the installed host; importing it imports nothing of the host."""
    return cast("HostAdapter", import_module("mkv_ascend.adapters.vllm_ascend_0_23.host"))


def installed_version(distribution: str) -> str | None:
    """The installed version of a distribution, or None when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def public_version(version: str) -> str:
    """A version without its local part: vLLM built from source is ``0.23.0+empty``."""
    return version.split("+", 1)[0]


def version_problem(installed: dict[str, str | None]) -> str | None:
    """What is wrong with the installed pair, or None.

    Args:
        installed: distribution name -> installed version or None, for each of ``SUPPORTED``.
    """
    fits = all(
        version is not None and public_version(version) == SUPPORTED[name]
        for name, version in installed.items()
    )
    if fits:
        return None
    found = " and ".join(f"{name} {version or 'missing'}" for name, version in installed.items())
    wanted = " and ".join(f"{name} {version}" for name, version in SUPPORTED.items())
    pins = " ".join(f"{name}=={version}" for name, version in SUPPORTED.items())
    return (
        f"found {found}; this release of mkv_ascend works with {wanted} only. "
        f"Install {pins}, install the mkv_ascend release for your pair, "
        "or uninstall mkv_ascend to run without it."
    )


def check_versions() -> None:
    """Refuse to start on any pair but the supported one.

    Raises:
        StartUpRefused: naming both installed and both supported versions.
    """
    problem = version_problem({name: installed_version(name) for name in SUPPORTED})
    if problem is not None:
        raise StartUpRefused(problem)
