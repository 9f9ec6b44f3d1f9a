# SPDX-License-Identifier: Apache-2.0
"""The emulated torch_npu and acl: found like the real ones, complete or failing by name."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch_npu

from emulated_npu.host_check import SITE_FOLDER
from emulated_npu.modules.torch_npu_root import COMPILER_MODULES, SUBMODULES
from tests.support.programs import HANG_SECONDS


def run_python(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )


def test_the_distribution_says_the_version_of_the_module() -> None:
    assert importlib.metadata.version("torch_npu") == torch_npu.__version__ == "2.10.0"
    assert torch.version.cann == "9.1.0"


def test_the_module_comes_from_the_emulators_folder() -> None:
    assert torch_npu.__file__ == str(SITE_FOLDER / "torch_npu" / "__init__.py")


@pytest.mark.parametrize("first", ["torch", "torch_npu", "torch_npu.npu"])
def test_the_device_is_there_whichever_module_is_imported_first(first: str) -> None:
    finished = run_python(f"import {first}, torch; print(torch.ones(2, device='npu:1').device)")
    assert finished.stdout.strip() == "npu:1", finished.stderr


@pytest.mark.parametrize("choice", ["0", "1"])
def test_the_users_autoload_choice_survives_the_import(choice: str) -> None:
    script = "import torch_npu, os; print(os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'])"
    finished = run_python(script, TORCH_DEVICE_BACKEND_AUTOLOAD=choice)
    assert finished.stdout.strip() == choice, finished.stderr


def test_the_emulation_is_announced_once_in_a_process_and_once_in_a_fork() -> None:
    script = "import torch, torch_npu, os; os.fork() or os._exit(0); os.wait()"
    finished = run_python(script)
    announced = re.findall(r"emulated NPU: .* \(process (\d+)\)", finished.stderr)
    assert len(announced) == len(set(announced)) == 2
    assert "not a real Ascend device" in finished.stderr


@pytest.mark.parametrize("name", sorted(SUBMODULES))
def test_every_submodule_can_be_imported_and_reached_as_an_attribute(name: str) -> None:
    module = importlib.import_module(name)
    found = torch_npu
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    assert found is module


@pytest.mark.parametrize("name", COMPILER_MODULES)
def test_every_module_of_the_compiler_can_be_imported(name: str) -> None:
    assert importlib.import_module(name).__name__ == COMPILER_MODULES[name]


def test_a_missing_operator_fails_by_name_when_called_not_when_named() -> None:
    operator = torch_npu.npu_no_such_operator
    with pytest.raises(NotImplementedError, match=r"no torch_npu\.npu_no_such_operator"):
        operator(torch.ones(1))
    with pytest.raises(NotImplementedError, match=r"no atb\.npu_no_such_operator"):
        torch_npu.atb.npu_no_such_operator()


def test_a_name_that_is_no_operator_does_not_exist() -> None:
    assert not hasattr(torch_npu, "float4_e1m2fn_x2")
    with pytest.raises(AttributeError, match="no_such_thing"):
        _ = torch_npu.no_such_thing


def test_what_is_not_emulated_says_so() -> None:
    import acl.rt
    import torch_npu.profiler

    with pytest.raises(NotImplementedError, match=r"acl\.rt\.malloc"):
        acl.rt.malloc(0, 0)
    with pytest.raises(NotImplementedError, match=r"torch_npu\.profiler\.profile"):
        torch_npu.profiler.profile()


def test_transformers_loads_a_vision_model_without_torchvision() -> None:
    # The distribution is asked for: a module of that name may be the stand-in of an earlier test.
    if list(importlib.metadata.distributions(name="torchvision")):
        pytest.skip("a torchvision is installed, so nothing stands in for it")
    # Not `from ... import`: the package answers that with a placeholder.
    image_processing = importlib.import_module(
        "transformers.models.qwen2_vl.image_processing_qwen2_vl"
    )
    from transformers.utils import is_torchvision_available

    assert not is_torchvision_available()
    with pytest.raises(NotImplementedError, match=r"torchvision\.transforms\.v2\.functional"):
        image_processing.tvF.resize(None)


def test_a_child_process_is_emulated_too() -> None:
    script = (
        "import subprocess, sys; subprocess.run([sys.executable, '-c', "
        "'import torch; print(torch.ones(2).npu().device.type)'], check=True)"
    )
    assert run_python(script).stdout.strip() == "npu"


def test_an_installed_fla_npu_is_not_hidden(tmp_path: Path) -> None:
    """Wherever on the path it stands, as one that is installed stands behind our folder."""
    (tmp_path / "fla_npu").mkdir()
    (tmp_path / "fla_npu" / "__init__.py").write_text("ORIGIN = 'installed'\n")
    path = os.pathsep.join([os.environ["PYTHONPATH"], str(tmp_path)])
    finished = run_python("import torch, fla_npu; print(fla_npu.ORIGIN)", PYTHONPATH=path)
    assert finished.stdout.strip() == "installed", finished.stderr


def test_fla_npu_names_what_it_has_no_kernel_for() -> None:
    script = (
        "import torch\n"
        "from fla_npu.ops import ascendc\n"
        "assert not hasattr(ascendc, 'npu_of_tomorrow')\n"
        "ascendc.solve_tri(1)"
    )
    finished = run_python(script)
    assert "emulated NPU has no fla_npu.ops.ascendc.solve_tri;" in finished.stderr


# The report at the end of a process: asked for by a setting, printed by every process.

PROGRAM = """
import multiprocessing
import torch
import torch_npu

def child():
    torch.ones(3, device="npu").tolist()

def idle():
    pass

if __name__ == "__main__":
    torch.flip(torch.empty(3, device="npu"), [0])
    for name, target in (("worker", child), ("idle", idle)):
        process = multiprocessing.get_context("METHOD").Process(target=target, name=name)
        process.start()
        process.join()
    assert process.exitcode == 0
"""


def run(method: str, tmp_path, **variables: str) -> str:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("METHOD", method))
    finished = subprocess.run(
        [sys.executable, str(path)],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    return finished.stderr


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_each_process_reports_its_own_counts(method: str, tmp_path) -> None:
    errors = run(method, tmp_path, EMULATED_NPU_COUNTERS="1")
    reports = [line for line in errors.splitlines() if " launches, " in line]
    assert len(reports) == 2, errors
    assert reports[0].startswith("worker (process ")
    assert ": emulated NPU: 2 launches, 1 host reads, 0 bytes to device, 12 bytes" in reports[0]
    assert reports[1].startswith("MainProcess (process ")
    assert ": emulated NPU: 1 launches, 0 host reads," in reports[1]
    assert "program.py:7: 1 (12 bytes)" in errors
    assert "aten::flip: 1" in errors


def test_nothing_is_printed_unasked(tmp_path) -> None:
    assert " launches, " not in run("fork", tmp_path, EMULATED_NPU_COUNTERS="0")
