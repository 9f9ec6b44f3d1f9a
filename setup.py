# SPDX-License-Identifier: Apache-2.0
"""Builds the native parts by CMake; everything else about the package is in pyproject.toml.

What is built depends on the host, and one printed line says what and why:

- ``MKV_ASCEND_BUILD_OPS=0``: nothing native.
- a Python without torch, such as pip's isolated build environment: nothing, because native parts
  must be linked against the torch that they will run in. ``pip install --no-build-isolation .``
  builds them.
- an Ascend host (torch_npu, CANN, or SOC_VERSION set): the custom ops, not the emulated NPU. With
  ASCEND_HOME_PATH (CANN) and a SOC_VERSION of the 910B or 910C also their AscendC kernels.
- elsewhere: the custom ops, their AscendC kernels with the checker, and the emulated NPU.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import PlatformError

ROOT = Path(__file__).resolve().parent
EMULATOR_EXTENSION = "mkv_ascend.emulator._native"
OPS_EXTENSION = "mkv_ascend.ops._kernels"
SERVED_CHIPS = ("ascend910b", "ascend910_93")
NPU_OPS_EXTENSION = "mkv_ascend.ops._npu"
CHECKED_OPS_EXTENSION = "mkv_ascend.ops._ascendc_host"


def say(text: str) -> None:
    print(f"mkv_ascend: {text}", flush=True)


def load_module(path: str) -> ModuleType:
    """A module of the package, by its file: an isolated build cannot import the package itself."""
    specification = importlib.util.spec_from_file_location(
        f"_mkv_ascend_build.{Path(path).stem}", ROOT / path
    )
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module
    specification.loader.exec_module(module)
    return module


def why_nothing() -> str | None:
    """Why no native part is built here; None when one is."""
    if not load_module("mkv_ascend/envs.py").BUILD_OPS.get():
        return "MKV_ASCEND_BUILD_OPS is off"
    if importlib.util.find_spec("torch") is None:
        return (
            f"{sys.executable} has no torch to link against. To use `mkv-ascend emulate`, install "
            "torch 2.13.0 and run `pip install --no-build-isolation -e .`, or run `make setup`"
        )
    return None


def why_no_emulator() -> str | None:
    """Why the emulated NPU is not built here; None when it is."""
    signs = load_module("mkv_ascend/emulator/host_check.py").find_real_ascend()
    if os.environ.get("SOC_VERSION"):
        signs.append(f"SOC_VERSION is {os.environ['SOC_VERSION']}")
    return f"this is an Ascend host ({'; '.join(signs)})" if signs else None


def why_no_npu_kernels() -> str | None:
    """Why the AscendC kernels are not built with CANN here; None when they are."""
    if not os.environ.get("ASCEND_HOME_PATH"):
        return "ASCEND_HOME_PATH is not set: source CANN's set_env.sh"
    version = os.environ.get("SOC_VERSION", "").lower()
    if not version:
        return "SOC_VERSION is not set: name the chip, for instance ascend910b1 (npu-smi info)"
    if not version.startswith(SERVED_CHIPS):
        return f"they are for the 910B and 910C, and SOC_VERSION is {version}"
    return None


def native_extensions() -> list[Extension]:
    reason = why_nothing()
    if reason is not None:
        say(f"no native part is built: {reason}")
        return []
    extensions = [Extension(OPS_EXTENSION, sources=[])]
    reason = why_no_emulator()
    if reason is None:
        extensions.append(Extension(CHECKED_OPS_EXTENSION, sources=[]))
        extensions.append(Extension(EMULATOR_EXTENSION, sources=[]))
    else:
        say(f"the emulated NPU is not built: {reason}")
        reason = why_no_npu_kernels()
        if reason is None:
            extensions.append(Extension(NPU_OPS_EXTENSION, sources=[]))
        else:
            say(f"the AscendC kernels are not built, custom ops run as torch references: {reason}")
    return extensions


def find_tool(name: str) -> str | None:
    """A build tool: beside the running Python (pip's cmake and ninja), else on the path."""
    scripts = sysconfig.get_path("scripts")
    return shutil.which(name, path=scripts) or shutil.which(name)


class CMakeBuild(build_ext):
    """Builds all extensions in one CMake project. No Python headers are needed."""

    def run(self) -> None:
        cmake = find_tool("cmake")
        if cmake is None:
            raise PlatformError(
                "mkv_ascend: cmake is missing. Run `pip install cmake ninja` (or apt-get install "
                "cmake), or set MKV_ASCEND_BUILD_OPS=0 to install without native parts."
            )
        build_folder = ROOT / "build" / f"native-{sysconfig.get_python_version()}"
        self._run([cmake, "-S", ROOT, "-B", build_folder, *self._configure_options()])
        self._run([cmake, "--build", build_folder, "--parallel", str(os.cpu_count() or 1)])
        for extension in self.extensions:
            self._place(build_folder, extension.name)

    def _configure_options(self) -> list[str]:
        names = {extension.name for extension in self.extensions}
        options = [
            f"-DPython_EXECUTABLE={sys.executable}",
            f"-DMKV_ASCEND_BUILD_EMULATOR={'ON' if EMULATOR_EXTENSION in names else 'OFF'}",
            f"-DMKV_ASCEND_BUILD_NPU={'ON' if NPU_OPS_EXTENSION in names else 'OFF'}",
        ]
        if NPU_OPS_EXTENSION in names:
            options += [
                f"-D{name}={os.environ[name]}" for name in ("ASCEND_HOME_PATH", "SOC_VERSION")
            ]
        ninja = find_tool("ninja")
        if ninja is not None:
            options += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        return options

    def _run(self, command: list[str | Path]) -> None:
        words = [str(word) for word in command]
        say(" ".join(words))
        try:
            subprocess.run(words, check=True)
        except subprocess.CalledProcessError as error:
            raise PlatformError(
                f"mkv_ascend: the native build failed ({error}); its output is above (with pip: "
                "pass -v). It needs g++ 12 or later and about 2 GB of memory per core. "
                "MKV_ASCEND_BUILD_OPS=0 installs without native parts."
            ) from error

    def _place(self, build_folder: Path, extension_name: str) -> None:
        """Put the built library where setuptools expects it, in one step: a running process may
        have the old one mapped."""
        target = Path(self.get_ext_fullpath(extension_name))
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_suffix(".new")
        shutil.copyfile(build_folder / "native" / target.name, beside)
        os.replace(beside, target)
        say(f"built {target}")

    def get_ext_filename(self, fullname: str) -> str:
        # Not Python extension modules, so no Python version in the name (see csrc/emulator).
        return f"{fullname.replace('.', os.sep)}.so"


setup(ext_modules=native_extensions(), cmdclass={"build_ext": CMakeBuild})
