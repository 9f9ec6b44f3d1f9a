# SPDX-License-Identifier: Apache-2.0
"""Finds out whether this is an Ascend host. Standard library only: ``setup.py`` asks as well."""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Mapping
from pathlib import Path

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
