# SPDX-License-Identifier: Apache-2.0
"""What the two ``setup.py`` build on which host. Nothing is built here: CMake is not reached."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = "emulated_npu/setup.py"
EXTENSIONS = "[one.name for one in given['ext_modules']]"


def run_setup(
    expression: str, file: str = "setup.py", **variables: str
) -> subprocess.CompletedProcess[str]:
    """Load a ``setup.py`` under these variables and print an expression of its names."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MKV_ASCEND_", "CMAKE_"))
        and name not in ("SOC_VERSION", "ASCEND_HOME_PATH")
    }
    program = (
        "import runpy, setuptools\n"
        "given = {}; setuptools.setup = lambda **options: given.update(options)\n"
        f"names = runpy.run_path({str(ROOT / file)!r})\n"
        f"print({expression!r}, eval({expression!r}, names, {{'given': given}}))"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def printed(expression: str, file: str = "setup.py", **variables: str) -> str:
    finished = run_setup(expression, file, **variables)
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def refusal(expression: str, **variables: str) -> str:
    """The message of a PlatformError."""
    finished = run_setup(expression, **variables)
    assert "PlatformError: mkv_ascend: " in finished.stderr
    return finished.stderr.partition("PlatformError: ")[2]


def extensions(**variables: str) -> str:
    """What would be built."""
    return printed(EXTENSIONS, **variables)


def test_everything_is_built_where_torch_is() -> None:
    pytest.importorskip("torch", reason="without torch nothing native is rightly built")
    assert "['mkv_ascend.ops._kernels', 'mkv_ascend.ops._ascendc_host']" in extensions()
    assert "['emulated_npu._native']" in printed(EXTENSIONS, EMULATOR)


def test_native_parts_can_be_switched_off() -> None:
    output = extensions(MKV_ASCEND_BUILD_OPS="0")
    assert output.endswith(" []\n")
    assert "MKV_ASCEND_BUILD_OPS is off" in output


@pytest.mark.parametrize("name", ["SOC_VERSION", "ASCEND_HOME_PATH"])
def test_an_ascend_host_gets_the_kernels_(name: str, tmp_path: Path) -> None:
    output = extensions(**{name: str(tmp_path)})
    assert "['mkv_ascend.ops._kernels', 'mkv_ascend.ops._npu']" in output
    assert "this is an Ascend host" in output
    assert name in output


def test_the_emulated_device_is_not_built_on_an_ascend_host(tmp_path: Path) -> None:
    output = printed(EXTENSIONS, EMULATOR, ASCEND_HOME_PATH=str(tmp_path))
    assert output.endswith(" []\n")
    assert "not built: this is an Ascend host (ASCEND_HOME_PATH names the folder" in output


def test_the_chip_is_that_of_vllm_ascend() -> None:
    assert printed("npu_chip()", SOC_VERSION="910C").endswith(" ascend910_9392\n")
    assert "for the 910B and 910C, not for 310p\n" in printed("npu_chip()", SOC_VERSION="310P")
    message = refusal("npu_chip()", SOC_VERSION="ascend910b")
    assert "SOC_VERSION is ascend910b, of which CANN makes a build for the first Ascend" in message
    assert "MKV_ASCEND_BUILD_OPS=0 installs without native parts" in message
    # PATH without npu-smi: the chip is unknown.
    assert "SOC_VERSION is not set and there is no npu-smi" in refusal("npu_chip()", PATH="/none")


def test_the_kernels_are_built_by_make_and_without_ccache() -> None:
    both = "(choose_generator(True), [name for name in os.environ if 'LAUNCHER' in name])"
    output = printed(both, CMAKE_CXX_COMPILER_LAUNCHER="ccache", CMAKE_C_COMPILER_LAUNCHER="ccache")
    assert "(['-G', 'Unix Makefiles', '-DCMAKE_MAKE_PROGRAM=" in output
    assert output.endswith("], [])\n")
    assert "Makefiles" not in printed("choose_generator(False)")
    assert "make is missing" in refusal("choose_generator(True)", PATH="/none")


def test_what_a_broken_build_says_is_cut_to_the_errors(tmp_path: Path) -> None:
    log = tmp_path / "build.log"
    cases = {
        "make: x\na.cpp:3: error: no\nb.cpp: note\na.cpp:3: error: no\n": "a.cpp:3: error: no",
        "CMake Error at x:1 (message):\n  one\n  two\n\n": "one two",
        "\n".join(f"line {number}" for number in range(99)): "line 91",
    }
    for text, wanted in cases.items():
        log.write_text(text)
        shown = printed(f"CMakeBuild.first_errors(Path({str(log)!r}))").split(") ", 1)[1].strip()
        assert shown.startswith(wanted)
        assert len(shown.splitlines()) <= 8


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
module("setuptools.command.build", build=type("build", (), {"sub_commands": []}))
module("setuptools.command.build_ext", build_ext=object)
module("setuptools.errors", PlatformError=RuntimeError)
runpy.run_path(sys.argv[1])
"""
