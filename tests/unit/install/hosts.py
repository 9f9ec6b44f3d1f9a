# SPDX-License-Identifier: Apache-2.0
"""An Ascend host that is none: stand-ins of CANN and torch_npu in a folder, and our sources beside.

The stand-ins (``stand_in``) are written for these tests and know only what the build calls; g++
compiles the kernels for the CPU, with the checker of AscendC kernels.
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import mkv_ascend
from tests.support.ascendc_host import compiler

ROOT = Path(mkv_ascend.__file__).resolve().parents[1]
STAND_IN = Path(__file__).resolve().parent / "stand_in"
HANG_SECONDS = 900

SOURCES = ("cmake", "csrc", "mkv_ascend", "requirements")
FILES = ("setup.py", "pyproject.toml", "CMakeLists.txt", "README.md", "LICENSE", "NOTICE")
NOT_COPIED = shutil.ignore_patterns("*.so", "__pycache__")


@dataclass(frozen=True)
class Host:
    """The folders of the stand-in."""

    folder: Path

    @property
    def cann(self) -> Path:
        return self.folder / "cann"

    @property
    def site(self) -> Path:
        """What holds torch_npu, for ``PYTHONPATH``."""
        return self.folder / "site"

    @property
    def sources(self) -> Path:
        return self.folder / "mkv_ascend"

    @property
    def installed(self) -> Path:
        return self.folder / "installed"

    def environment(self, **changes: str) -> dict[str, str]:
        """As on an Ascend host whose users like Ninja and ccache."""
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith("MKV_ASCEND_")
        }
        host = {
            "ASCEND_HOME_PATH": str(self.cann),
            "SOC_VERSION": "910B",
            "PYTHONPATH": str(self.site),
            "LD_LIBRARY_PATH": f"{self.cann / 'lib64'}:{self.site / 'torch_npu' / 'lib'}",
            "CMAKE_GENERATOR": "Ninja",
            "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "STAND_IN_CHIP": "Ascend910B3",
        }
        return {**kept, **host, **changes}

    def install(self, **changes: str) -> subprocess.CompletedProcess[str]:
        """``pip install .`` as docs/install.md has it, into a folder of its own."""
        return subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps"),
                *("--no-index", "--upgrade", "--target", str(self.installed), "."),
            ],
            cwd=self.sources,
            env=self.environment(**changes),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )

    def run(self, program: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """A Python program with what is installed; it can import the tests as well."""
        path = f"{self.installed}:{self.site}:{ROOT}"
        return subprocess.run(
            [sys.executable, "-c", program],
            cwd=self.folder,
            env=self.environment(PYTHONPATH=path, **changes),
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )


def make_host(folder: Path) -> Host:
    """Write the stand-ins, and copy our sources."""
    host = Host(folder)
    _make_cann(host)
    _make_torch_npu(host)
    host.sources.mkdir()
    for name in SOURCES:
        shutil.copytree(ROOT / name, host.sources / name, ignore=NOT_COPIED)
    for name in FILES:
        shutil.copy(ROOT / name, host.sources)
    return host


def _make_cann(host: Host) -> None:
    module = host.cann / "tools" / "tikcpp" / "ascendc_kernel_cmake"
    include = host.cann / "include"
    (include / "acl").mkdir(parents=True)
    module.mkdir(parents=True)
    for name in ("ascendc.cmake", "kernels.py", "runtime.cpp"):
        shutil.copy(STAND_IN / "cann" / name, module)
    shutil.copy(STAND_IN / "cann" / "acl.h", include / "acl")
    shutil.copy(STAND_IN / "cann" / "kernel_operator.h", include)
    checker = host.sources / "csrc" / "ascendc_host" / "include" / "kernel_operator.h"
    (include / "checker.h").write_text(f'#include "{checker}"\n', "utf-8")
    _link(STAND_IN / "cann" / "ascendcl.cpp", include, host.cann / "lib64" / "libascendcl.so")


def _make_torch_npu(host: Host) -> None:
    package = host.site / "torch_npu"
    headers = package / "include" / "torch_npu" / "csrc"
    for folder, name in (("core/npu", "NPUStream.h"), ("framework", "OpCommand.h")):
        (headers / folder).mkdir(parents=True)
        shutil.copy(STAND_IN / "torch_npu" / name, headers / folder)
    shutil.copy(STAND_IN / "torch_npu" / "package.py", package / "__init__.py")
    empty = host.folder / "empty.cpp"
    empty.write_text("", "utf-8")
    _link(empty, headers, package / "lib" / "libtorch_npu.so")


def _link(source: Path, include: Path, library: Path) -> None:
    library.parent.mkdir()
    command = [compiler(), "-std=c++17", "-shared", "-fPIC", "-I", str(include), str(source)]
    subprocess.run([*command, "-o", str(library)], check=True, timeout=HANG_SECONDS)
