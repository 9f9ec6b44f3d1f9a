# SPDX-License-Identifier: Apache-2.0
"""What is installed here: vLLM and vllm-ascend by name, for messages, and signs of an Ascend host.

Checks speak of the host that a command would run on; which ones are served, ``plugin/versions.py``
says. Standard library only: ``setup.py`` asks as well.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path


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


CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
"""What CANN's ``set_env.sh`` exports: each names the folder of the installed toolkit."""

CANN_DEFAULT_FOLDER = Path("/usr/local/Ascend")
DEVICE_FOLDER = Path("/dev")
EMULATED = "Emulated torch_npu"
"""Begins the summary of the distribution torch_npu that is none."""


def find_ascend(
    environment: Mapping[str, str] | None = None,
    default_folder: Path = CANN_DEFAULT_FOLDER,
    device_folder: Path = DEVICE_FOLDER,
    search_path: list[str] | None = None,
) -> list[str]:
    """One sentence for each sign of CANN, an NPU or torch_npu; empty when there is none.

    Args:
        search_path: where distributions are looked for, by default ``sys.path``.
    """
    environment = os.environ if environment is None else environment
    signs = [
        f"{name} names the folder {environment[name]}"
        for name in CANN_VARIABLES
        if environment.get(name) and Path(environment[name]).is_dir()
    ]
    if default_folder.is_dir():
        signs.append(f"the folder {default_folder} exists")
    devices = sorted(device_folder.glob("davinci[0-9]*"))
    if devices:
        signs.append(f"the NPU device {devices[0]} exists")
    path = sys.path if search_path is None else search_path
    for distribution in importlib.metadata.distributions(name="torch_npu", path=path):
        if not str(distribution.metadata["Summary"]).startswith(EMULATED):
            folder = Path(str(distribution.locate_file("."))).resolve()
            signs.append(f"torch_npu {distribution.version} is installed in {folder}")
    return signs
