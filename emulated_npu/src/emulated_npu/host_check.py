# SPDX-License-Identifier: Apache-2.0
"""Finds a real Ascend installation, beside which the emulated NPU refuses to load.

On an Ascend host the emulated ``torch_npu`` would hide the real one and a test could pass there
without ever touching the hardware, so the emulator never loads next to CANN or a real torch_npu.
Standard library only: the launcher and the emulated ``torch_npu`` both ask before importing torch.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping
from pathlib import Path

SITE_FOLDER = Path(__file__).resolve().parent / "site"
"""Folder of the stand-in packages; the torch_npu distribution in it is the emulated one."""

CANN_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME")
"""What CANN's ``set_env.sh`` exports: each names the folder of the installed toolkit."""

CANN_DEFAULT_FOLDER = Path("/usr/local/Ascend")
DEVICE_FOLDER = Path("/dev")


class RealAscendError(RuntimeError):
    """The emulated NPU was asked for where a real torch_npu or CANN is installed."""


def find_real_ascend(
    environment: Mapping[str, str] | None = None,
    default_folder: Path = CANN_DEFAULT_FOLDER,
    device_folder: Path = DEVICE_FOLDER,
    search_path: list[str] | None = None,
) -> list[str]:
    """One sentence for each sign of a real Ascend installation; empty when there is none.

    ``search_path`` is where distributions are looked for (default: ``sys.path``).
    """
    signs = _cann_signs(os.environ if environment is None else environment, default_folder)
    devices = sorted(device_folder.glob("davinci[0-9]*"))
    if devices:
        signs.append(f"the NPU device {devices[0]} exists")
    signs.extend(_torch_npu_signs(search_path))
    return signs


def _cann_signs(environment: Mapping[str, str], default_folder: Path) -> list[str]:
    signs = [
        f"{name} names the folder {environment[name]}"
        for name in CANN_VARIABLES
        if environment.get(name) and Path(environment[name]).is_dir()
    ]
    if default_folder.is_dir():
        signs.append(f"the folder {default_folder} exists")
    return signs


def _torch_npu_signs(search_path: list[str] | None) -> list[str]:
    if search_path is None:
        found = importlib.metadata.distributions(name="torch_npu")
    else:
        found = importlib.metadata.distributions(name="torch_npu", path=search_path)
    signs = []
    for distribution in found:
        folder = Path(str(distribution.locate_file("."))).resolve()
        if folder != SITE_FOLDER:
            signs.append(f"torch_npu {distribution.version} is installed in {folder}")
    return signs


def refuse_real_ascend(environment: Mapping[str, str] | None = None) -> None:
    """Raise RealAscendError, naming what was found, if this host has a real torch_npu or CANN."""
    signs = find_real_ascend(environment)
    if signs:
        raise RealAscendError(
            f"the emulated NPU does not run on an Ascend host: {'; '.join(signs)}. "
            "Run the command as it is, without the emulator, or use a machine without CANN."
        )
