# SPDX-License-Identifier: Apache-2.0
"""Builds the native device by CMake; everything else about the package is in pyproject.toml.

It must be linked against the torch that it will run in. So nothing is built where there is none,
such as in pip's isolated build environment: ``pip install --no-build-isolation .`` builds it. Nor
is it on an Ascend host, where the emulated NPU refuses to run, nor with ``EMULATED_NPU_BUILD=0``.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from setuptools import Extension, setup

ROOT = Path(__file__).resolve().parent
# A link to the folder of the repository, a folder of its own in a source distribution.
sys.path.insert(0, str(ROOT / "cmake"))
sys.path.insert(0, str(ROOT / "src"))
from emulated_npu import variables  # noqa: E402
from emulated_npu.host_check import find_real_ascend  # noqa: E402
from native_build import Build, CMakeBuild, choose_ninja  # noqa: E402


class DeviceBuild(CMakeBuild):
    """Builds the device."""

    root, project = ROOT, "emulated_npu"

    def run(self) -> None:
        self.build_with_cmake("native", choose_ninja())


def native_extensions() -> list[Extension]:
    """What is to be built here; one printed line says why it is nothing."""
    signs = find_real_ascend()
    if not variables.BUILD.get():
        reason = "EMULATED_NPU_BUILD is off"
    elif signs:
        reason = f"this is an Ascend host ({'; '.join(signs)})"
    elif importlib.util.find_spec("torch") is None:
        reason = (
            f"{sys.executable} has no torch to link against. Install torch and run `pip install "
            "--no-build-isolation -e ./emulated_npu`, or run `make setup`, in a clone of mkv_ascend"
        )
    else:
        return [Extension("emulated_npu._native", sources=[])]
    print(f"emulated_npu: the device is not built: {reason}", flush=True)
    return []


setup(ext_modules=native_extensions(), cmdclass={"build": Build, "build_ext": DeviceBuild})
