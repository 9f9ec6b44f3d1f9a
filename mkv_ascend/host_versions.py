# SPDX-License-Identifier: Apache-2.0
"""The installed vLLM and vllm-ascend by name, for messages. Standard library only.

Checks speak of the host that a command would run on; which ones are served, ``plugin/versions.py``
says.
"""

from __future__ import annotations

from importlib import metadata


def installed_version(distribution: str) -> str | None:
    """The installed version of a distribution, or None when it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def vllm() -> str:
    """``vLLM 0.23.0``; without a version where it is not installed."""
    return _named("vLLM", "vllm")


def vllm_ascend() -> str:
    """``vllm-ascend 0.23.0``; without a version where it is not installed."""
    return _named("vllm-ascend", "vllm-ascend")


def _named(name: str, distribution: str) -> str:
    version = installed_version(distribution)
    # vLLM built from source has a local part, for instance +empty.
    return name if version is None else f"{name} {version.partition('+')[0]}"


def dropped_general_plugins(allowed: str | None) -> list[str]:
    """Names of vllm-ascend's general plugins that a ``VLLM_PLUGINS`` value leaves out.

    Args:
        allowed: the value of ``VLLM_PLUGINS``; None (unset) allows everything.
    """
    if allowed is None:
        return []
    names = allowed.split(",")
    return sorted(
        point.name
        for point in metadata.entry_points(group="vllm.general_plugins")
        if point.value.partition(":")[0].partition(".")[0] == "vllm_ascend"
        and point.name not in names
    )
