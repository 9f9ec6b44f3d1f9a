# SPDX-License-Identifier: Apache-2.0
"""Builds the native parts by CMake; everything else about the package is in pyproject.toml.

What is built depends on the host, and one printed line says what and why:

- ``MKV_ASCEND_BUILD_OPS=0``: nothing native.
- a Python without torch, such as pip's isolated build environment: nothing, because native parts
  must be linked against the torch that they will run in. ``pip install --no-build-isolation .``
  builds them. On an Ascend host such a build is refused.
- an Ascend host (torch_npu, CANN, or SOC_VERSION set): the custom ops with the AscendC kernels for
  its chip. What is missing there for them ends the build in one message.
- elsewhere: the custom ops, and their AscendC kernels with the checker.

The emulated NPU is a distribution of its own, in ``emulated_npu/``.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

from setuptools import Extension, setup
from setuptools.errors import PlatformError

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "cmake"))
from native_build import Build, CMakeBuild, choose_ninja, needed_tool  # noqa: E402

OPS_EXTENSION = "mkv_ascend.ops._kernels"
NPU_OPS_EXTENSION = "mkv_ascend.ops._npu"
CHECKED_OPS_EXTENSION = "mkv_ascend.ops._ascendc_host"

DEFAULT_CANN = Path("/usr/local/Ascend/ascend-toolkit/latest")
# Where CANN keeps its CMake module differs between releases.
CANN_MODULES = tuple(
    f"{folder}/ascendc.cmake"
    for folder in (
        "tools/tikcpp/ascendc_kernel_cmake",
        "compiler/tikcpp/ascendc_kernel_cmake",
        "ascendc_devkit/tikcpp/samples/cmake",
    )
)
WITHOUT = "MKV_ASCEND_BUILD_OPS=0 installs without native parts."


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


def ascend_signs() -> list[str]:
    """What shows that this is an Ascend host; empty when nothing does."""
    signs: list[str] = load_module("mkv_ascend/host_versions.py").find_ascend()
    if os.environ.get("SOC_VERSION"):
        signs.append(f"SOC_VERSION is {os.environ['SOC_VERSION']}")
    return signs


def native_extensions() -> list[Extension]:
    """What is to be built here. Whether it can be is looked at when it is built."""
    if not load_module("mkv_ascend/envs.py").BUILD_OPS.get():
        say("no native part is built: MKV_ASCEND_BUILD_OPS is off")
        return []
    signs = ascend_signs()
    if signs:
        say(f"the ops are built for an NPU: this is an Ascend host ({'; '.join(signs)})")
        return [Extension(name, sources=[]) for name in (OPS_EXTENSION, NPU_OPS_EXTENSION)]
    if importlib.util.find_spec("torch") is None:
        say(
            f"no native part is built: {sys.executable} has no torch to link against. To have "
            "them, install torch 2.13.0 and run `pip install --no-build-isolation -e .`, or run "
            "`make setup`"
        )
        return []
    return [Extension(name, sources=[]) for name in (OPS_EXTENSION, CHECKED_OPS_EXTENSION)]


def choose_generator(for_npu: bool) -> list[str]:
    """CMake's options for who runs the compilers; decided here and nowhere else.

    For the AscendC kernels neither Ninja nor ccache: CANN's ``ascendc_library`` links a second time
    by the command that it reads in ``CMakeFiles/<target>.dir/link.txt``, which only Makefile
    generators write, and its compilers are none that ccache knows. Elsewhere Ninja where there is
    one: it is quicker.
    """
    if for_npu:
        make = needed_tool("make", "Run `apt-get install make`")
        for language in ("C", "CXX"):
            os.environ.pop(f"CMAKE_{language}_COMPILER_LAUNCHER", None)
        return ["-G", "Unix Makefiles", f"-DCMAKE_MAKE_PROGRAM={make}"]
    return choose_ninja()


def require_torch(for_npu: bool) -> None:
    """Raise PlatformError where the native parts have nothing to be linked against."""
    wanted = ("torch", "torch_npu") if for_npu else ("torch",)
    missing = [name for name in wanted if importlib.util.find_spec(name) is None]
    if missing:
        raise PlatformError(
            f"mkv_ascend: this is an Ascend host ({'; '.join(ascend_signs())}), and "
            f"{sys.executable} has no {' and no '.join(missing)} to build the custom ops with. "
            "Install vllm-ascend 0.23.0, which brings both, and run `pip install "
            "--no-build-isolation --no-deps .`: without --no-build-isolation pip builds in an "
            f"environment that has neither. {WITHOUT}"
        )


def npu_chip() -> str | None:
    """The chip to build the AscendC kernels for; None where there are none for the chip."""
    chips = load_module("mkv_ascend/ops/chips.py")
    try:
        name, built_for = chips.chip_to_build_for(os.environ)
    except chips.ChipError as error:
        raise PlatformError(f"mkv_ascend: {error} {WITHOUT}") from error
    if built_for is None:
        say(f"the AscendC kernels are not built, they are for the 910B and 910C, not for {name}")
        return None
    return str(built_for)


def cann_options() -> list[str]:
    """Where CMake finds CANN and torch_npu."""
    asked = os.environ.get("ASCEND_HOME_PATH")
    home = Path(asked) if asked else DEFAULT_CANN
    modules = [home / module for module in CANN_MODULES if (home / module).is_file()]
    if not modules:
        where = f"ASCEND_HOME_PATH is {asked}" if asked else "ASCEND_HOME_PATH is not set"
        folders = ", ".join(str(Path(module).parent) for module in CANN_MODULES)
        raise PlatformError(
            f"mkv_ascend: {where}, and there is no CANN toolkit in {home}: no ascendc.cmake in any "
            f"of {folders}. CANN 9.1 compiles the AscendC kernels: install its toolkit and run "
            f"`source /usr/local/Ascend/ascend-toolkit/set_env.sh`. {WITHOUT}"
        )
    # CANN's own CMake reads the variable as well.
    os.environ["ASCEND_HOME_PATH"] = str(home)
    torch_npu = importlib.util.find_spec("torch_npu")
    assert torch_npu is not None
    assert torch_npu.submodule_search_locations
    return [
        f"-DASCEND_HOME_PATH={home}",
        f"-DMKV_ASCENDC_MODULE={modules[0]}",
        f"-DMKV_TORCH_NPU_FOLDER={torch_npu.submodule_search_locations[0]}",
        f"-DASCEND_PYTHON_EXECUTABLE={sys.executable}",
    ]


class OpsBuild(CMakeBuild):
    """Builds the custom ops."""

    root, project, way_out = ROOT, "mkv_ascend", WITHOUT

    def run(self) -> None:
        on_ascend = NPU_OPS_EXTENSION in {extension.name for extension in self.extensions}
        chip = npu_chip() if on_ascend else None
        if chip is None:
            self.extensions = [one for one in self.extensions if one.name != NPU_OPS_EXTENSION]
        require_torch(for_npu=chip is not None)
        names = {extension.name for extension in self.extensions}
        options = [
            f"-DMKV_ASCEND_BUILD_CHECKER={'ON' if CHECKED_OPS_EXTENSION in names else 'OFF'}",
            f"-DMKV_ASCEND_BUILD_NPU={'OFF' if chip is None else 'ON'}",
            *choose_generator(for_npu=chip is not None),
        ]
        if chip is not None:
            options += [f"-DSOC_VERSION={chip}", *cann_options()]
        self.build_with_cmake("native" if chip is None else "npu", options)


setup(ext_modules=native_extensions(), cmdclass={"build": Build, "build_ext": OpsBuild})
