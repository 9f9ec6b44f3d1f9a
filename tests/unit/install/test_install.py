# SPDX-License-Identifier: Apache-2.0
"""``pip install .`` on an Ascend host, what it installs there, and what is said where it cannot.

CANN and torch_npu are stand-ins (see ``hosts``): the way of the build, the binding and what stands
between CANN's launch stub and its runtime are our own and really run. Not shown: that CANN's own
compiler takes the kernels.
"""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from mkv_ascend import ops
from tests.unit.install.hosts import Host, make_host

pytestmark = [pytest.mark.packaging, pytest.mark.slow]

LOAD = "from tests.unit.install import installed_ops as here; here.load(); "
COMMAND = "pip install --force-reinstall --no-build-isolation --no-deps ."


@pytest.fixture(scope="module")
def bare_host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return make_host(tmp_path_factory.mktemp("host"))


@pytest.fixture(scope="module")
def host(bare_host: Host) -> Host:
    """A host where the package is installed."""
    finished = bare_host.install()
    assert finished.returncode == 0, finished.stdout
    return bare_host


def test_the_libraries_of_an_ascend_host_are_installed(host: Host) -> None:
    libraries = {str(path.relative_to(host.installed)) for path in host.installed.rglob("*.so")}
    assert libraries == {"mkv_ascend/ops/_kernels.so", "mkv_ascend/ops/_npu.so"}
    # The kernels' names are in the library alone: vllm-ascend's library has CANN's names as well.
    names = subprocess.run(
        ["nm", "-D", "--defined-only", host.installed / "mkv_ascend/ops/_npu.so"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "AscendKernel" not in names
    assert "aclrtlaunch" not in names


def test_installed_ops_are_right_and_allocate_nothing(host: Host) -> None:
    finished = host.run(f"{LOAD} here.compare()")
    assert finished.returncode == 0, finished.stdout + finished.stderr
    lines = finished.stdout.splitlines()
    assert lines[0] == "npu (AscendC kernels, built for ascend910b1, on Ascend910B3)"
    assert [f"{name} is right" for name in ops.NAMES] == lines[1:-1]
    # CANN's stub asks for memory at each launch, and gets none.
    assert lines[-1] == "allocations: 0"


def test_a_910c_takes_kernels_of_the_910b(host: Host) -> None:
    finished = host.run(f"{LOAD} here.launch_once()", STAND_IN_CHIP="Ascend910_9392")
    assert finished.stdout.endswith("sum: 24\n"), finished.stderr


def test_a_launch_that_fails_is_an_error_of_its_op(host: Host) -> None:
    failure = {"STAND_IN_LAUNCH": "507899", "STAND_IN_MESSAGE": "EE9999: the driver is tired"}
    finished = host.run(f"{LOAD} here.launch_once()", **failure)
    assert "raised: stand-in of torch_npu: zero_blocks returned 507899" in finished.stdout
    assert "sum: 32" in finished.stdout
    assert (
        "mkv_ascend::zero_blocks wrote nothing: the launch failed with error 507899: "
        "EE9999: the driver is tired\n"
    ) in finished.stderr


REFUSED = {
    "another chip": (
        {"STAND_IN_CHIP": "Ascend310P3"},
        "they were built for ascend910b1, and this NPU is Ascend310P3, for which there are none. "
        "Move to a 910B or 910C. Or set MKV_ASCEND_OPS=reference",
    ),
    "the first 910": (
        {"STAND_IN_CHIP": "Ascend910B"},
        "they were built for ascend910b1, and this NPU is Ascend910B, for which there are none",
    ),
    "no chip": ({"STAND_IN_CHIP": ""}, "and the driver names no chip. Look at `npu-smi info`"),
    "kernels not loaded": (
        {"STAND_IN_REGISTER": "207001", "STAND_IN_MESSAGE": "EL0004: out of memory"},
        "this NPU is Ascend910B3; CANN's runtime does not load the kernels, error 207001: EL0004: "
        "out of memory. Build them again, in the sources of mkv_ascend: "
        f"`SOC_VERSION=ascend910b3 {COMMAND}`. Or set MKV_ASCEND_OPS=reference",
    ),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED)
def test_kernels_that_cannot_be_launched_are_refused_at_load(
    host: Host, changes: dict[str, str], message: str
) -> None:
    finished = host.run(LOAD, **changes)
    last = finished.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "mkv_ascend.ops.implementations.KernelsRefusedError: The AscendC kernels in "
        f"{host.installed}/mkv_ascend/ops/_npu.so cannot run: "
    )
    assert message in last


def test_a_launch_of_refused_kernels_is_an_error_too(host: Host) -> None:
    """CANN's stub prints and reports success: whoever calls the library by hand sees an error."""
    library = host.installed / "mkv_ascend/ops/_npu.so"
    program = (
        "import torch, torch_npu\n"
        f"torch.ops.load_library({str(library)!r})\n"
        "cache = torch.ones((4, 8))\n"
        "table = torch.tensor([[cache.data_ptr(), 32, 32, 4]])\n"
        "torch.ops.mkv_ascend_npu.zero_blocks(torch.tensor([2]), [cache], table)\n"
    )
    finished = host.run(program, STAND_IN_CHIP="Ascend310P3")
    assert "zero_blocks returned 107000" in finished.stderr
    assert (
        "mkv_ascend::zero_blocks wrote nothing: CANN's stub launched nothing: CANN takes the "
        "kernels for those of another chip: the socversion ascend910b1 is not Ascend310P3"
    ) in finished.stderr


def test_the_doctor_says_the_same(host: Host) -> None:
    program = (
        "import json, torch_npu\n"
        "from mkv_ascend.commands import doctor\n"
        "print(json.dumps(list(doctor._op_problems(doctor._ops()))))"
    )
    assert json.loads(host.run(program).stdout) == []
    (problem,) = json.loads(host.run(program, STAND_IN_CHIP="Ascend310P3").stdout)
    assert problem.startswith(f"Nothing serves {', '.join(ops.NAMES)}: The AscendC kernels in ")
    assert "were built for ascend910b1, and this NPU is Ascend310P3" in problem


@pytest.fixture
def broken_kernel(host: Host) -> Iterator[Path]:
    kernel = host.sources / "csrc" / "ascend" / "zero_blocks.cpp"
    text = kernel.read_text("utf-8")
    kernel.write_text(text.replace("int64_t until_turn = GetBlockIdx();", "int64_t until_turn = ;"))
    yield kernel
    kernel.write_text(text, "utf-8")


def said(finished: subprocess.CompletedProcess[str]) -> str:
    """The message of a build that failed: the last that it printed, after a few lines only."""
    assert finished.returncode == 1, finished.stdout
    assert "Traceback" not in finished.stdout
    assert len(finished.stdout.splitlines()) < 40, finished.stdout
    box = finished.stdout.partition("[end of output]")[0]
    _, found, message = box.rpartition("error: mkv_ascend: ")
    assert found, finished.stdout
    assert len(message.strip().splitlines()) <= 4, message
    return " ".join(message.split())


WAY_OUT = "MKV_ASCEND_BUILD_OPS=0 installs without native parts."


def test_a_host_without_cann(bare_host: Host) -> None:
    message = said(bare_host.install(ASCEND_HOME_PATH="/no/such/folder"))
    assert message.startswith(
        "ASCEND_HOME_PATH is /no/such/folder, and there is no CANN toolkit in /no/such/folder: "
    )
    assert "run `source /usr/local/Ascend/ascend-toolkit/set_env.sh`" in message
    assert message.endswith(WAY_OUT)


def test_a_host_with_a_wrong_chip_name(bare_host: Host) -> None:
    message = said(bare_host.install(SOC_VERSION="ascend910b"))
    assert message.startswith(
        "SOC_VERSION is ascend910b, of which CANN makes a build for the first"
    )
    assert "Possible are 910b or ascend910b1, " in message
    assert message.endswith(WAY_OUT)


def test_a_host_without_torch_npu(bare_host: Host) -> None:
    message = said(bare_host.install(PYTHONPATH=""))
    assert message.startswith("this is an Ascend host (ASCEND_HOME_PATH names the folder ")
    assert "has no torch_npu to build the custom ops with. Install vllm-ascend 0.23.0" in message
    assert message.endswith(WAY_OUT)


def test_a_kernel_that_does_not_parse(host: Host, broken_kernel: Path) -> None:
    message = said(host.install())
    assert message.startswith("the native build failed ")
    line = broken_kernel.read_text("utf-8").split("until_turn = ;")[0].count("\n") + 1
    assert f"csrc/ascend/zero_blocks.cpp:{line}:" in message
    assert "error: expected primary-expression before" in message
    assert message.endswith(WAY_OUT)
