# SPDX-License-Identifier: Apache-2.0
"""What ``setup.py`` builds on which host. Nothing is built here: CMake is not reached."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def extensions(**variables: str) -> str:
    """What ``setup.py`` prints, and whether it would build, under these environment variables."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MKV_ASCEND_") and name not in ("SOC_VERSION", "ASCEND_HOME_PATH")
    }
    program = (
        "import setuptools; setuptools.setup = lambda **options: print("
        "'extensions:', [one.name for one in options['ext_modules']]); "
        f"import runpy; runpy.run_path({str(ROOT / 'setup.py')!r})"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stdout


def test_everything_is_built_where_torch_is() -> None:
    pytest.importorskip("torch", reason="without torch nothing native is rightly built")
    names = ("ops._kernels", "ops._ascendc_host", "emulator._native")
    assert f"extensions: {[f'mkv_ascend.{name}' for name in names]}" in extensions()


def test_native_parts_can_be_switched_off() -> None:
    output = extensions(MKV_ASCEND_BUILD_OPS="0")
    assert "extensions: []" in output
    assert "MKV_ASCEND_BUILD_OPS is off" in output


@pytest.mark.parametrize("name", ["SOC_VERSION", "ASCEND_HOME_PATH"])
def test_the_emulator_is_not_built_on_an_ascend_host(name: str, tmp_path: Path) -> None:
    output = extensions(**{name: str(tmp_path)})
    assert "extensions: ['mkv_ascend.ops._kernels']" in output
    assert "not built: this is an Ascend host" in output
    assert name in output


def test_npu_kernels_are_built_with_cann_for_the_chips_that_they_are_for(tmp_path: Path) -> None:
    cann = {"ASCEND_HOME_PATH": str(tmp_path)}
    both = "extensions: ['mkv_ascend.ops._kernels', 'mkv_ascend.ops._npu']"
    for chip in ("ascend910b1", "ascend910_9392"):
        assert both in extensions(SOC_VERSION=chip, **cann)
    assert "for the 910B and 910C, and SOC_VERSION is ascend310p3" in extensions(
        SOC_VERSION="ascend310p3", **cann
    )
    assert "SOC_VERSION is not set" in extensions(**cann)
    assert "ASCEND_HOME_PATH is not set" in extensions(SOC_VERSION="ascend910b1")


def test_without_torch_the_way_to_build_is_printed() -> None:
    output = subprocess.run(
        # -S: no site-packages, hence no torch; setuptools is replaced by what setup.py needs of it.
        [sys.executable, "-S", "-c", WITHOUT_TORCH, str(ROOT / "setup.py")],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "extensions: []" in output
    assert "has no torch to link against" in output
    assert "pip install --no-build-isolation -e ." in output


WITHOUT_TORCH = """
import runpy, sys, types

def module(name, **content):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__dict__.update(content)

show = lambda **options: print("extensions:", options["ext_modules"])
module("setuptools", setup=show, Extension=object)
module("setuptools.command")
module("setuptools.command.build_ext", build_ext=object)
module("setuptools.errors", PlatformError=RuntimeError)
runpy.run_path(sys.argv[1])
"""
