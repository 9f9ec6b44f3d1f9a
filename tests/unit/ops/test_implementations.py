# SPDX-License-Identifier: Apache-2.0
"""Which kernels are chosen, and what is said when there are none."""

import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from mkv_ascend import ops
from mkv_ascend.ops import chips, implementations
from mkv_ascend.ops.registration import OPS, CustomOp, register


@pytest.fixture(scope="module", autouse=True)
def implementation() -> None:
    """The choice itself is looked at here, once."""


@pytest.fixture
def choosing() -> Iterator[pytest.MonkeyPatch]:
    """Choices made anew in this test, and forgotten after it."""
    caches = (implementations.for_cpu, implementations.for_npu, implementations._load_problem)
    for function in caches:
        function.cache_clear()
    with pytest.MonkeyPatch.context() as patch:
        yield patch
    for function in caches:
        function.cache_clear()


def test_built_kernels_are_used() -> None:
    ops.load_all()
    assert set(OPS) == set(ops.NAMES)
    assert implementations.for_cpu().implementation == implementations.NATIVE
    for op in OPS.values():
        assert torch._C._dispatch_has_kernel_for_dispatch_key(op.qualified_name, "CPU")
        assert "csrc/op_table.h" in torch._C._dispatch_dump(op.qualified_name)


def test_the_reference_can_be_asked_for(choosing: pytest.MonkeyPatch) -> None:
    choosing.setenv("MKV_ASCEND_OPS", "reference")
    assert str(implementations.for_cpu()) == "reference (MKV_ASCEND_OPS asks for it)"


def test_missing_kernels_are_named_where_they_are_asked_for(
    choosing: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    choosing.setattr(implementations, "FOLDER", tmp_path)
    choosing.setenv("MKV_ASCEND_OPS", "native")
    with pytest.raises(implementations.KernelsMissingError, match="MKV_ASCEND_OPS is native, but"):
        implementations.for_cpu()
    with pytest.raises(implementations.KernelsMissingError, match="not built: no file"):
        implementations.kernel_of("ascendc_host", "draft_plan")


def test_missing_kernels_are_warned_of_where_they_are_not(
    choosing: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "_kernels.so").write_text("no library")
    choosing.setattr(implementations, "FOLDER", tmp_path)
    choosing.delenv("MKV_ASCEND_OPS", raising=False)
    choosing.setattr(implementations.logger, "propagate", True)
    choosing.setattr(implementations.logger.parent, "propagate", True)
    assert implementations.for_cpu().implementation == implementations.REFERENCE
    assert implementations.for_cpu().implementation == implementations.REFERENCE
    # By identity: with vLLM's logging set up one record may reach the handler by two ways.
    (record,) = {id(one): one for one in caplog.records}.values()
    assert "does not load into torch" in record.getMessage()


def test_a_device_that_runs_cpu_kernels_needs_none_of_its_own(choosing: pytest.MonkeyPatch) -> None:
    class Module:
        runs_cpu_kernels = True

    choosing.setattr(torch._C, "_get_privateuse1_backend_name", lambda: "npu")
    choosing.setattr(torch, "get_device_module", lambda _: Module)
    assert implementations.for_npu() is None
    implementations.for_npu.cache_clear()
    choosing.setattr(Module, "runs_cpu_kernels", False)
    choosing.delenv("MKV_ASCEND_OPS", raising=False)
    choice = implementations.for_npu()
    assert choice is not None
    assert choice.implementation == implementations.REFERENCE
    assert "the npu kernels are not built" in choice.reason
    for asked, message in (
        ("native", "Build the kernels with CANN"),
        ("ascendc_host", "for the CPU"),
    ):
        implementations.for_npu.cache_clear()
        choosing.setenv("MKV_ASCEND_OPS", asked)
        with pytest.raises(implementations.KernelsMissingError, match=message):
            implementations.for_npu()


def test_an_op_is_registered_once() -> None:
    ops.load_all()
    with pytest.raises(ValueError, match="mkv_ascend::draft_plan is registered already"):
        register(CustomOp("draft_plan", "", lambda: None, lambda: None, lambda: None))


@pytest.mark.parametrize(
    ("given", "built"),
    [
        ("910b", "ascend910b1"),
        ("910B", "ascend910b1"),
        ("910c", "ascend910_9392"),
        ("ascend910b4-1", "ascend910b4-1"),
        ("Ascend910B2C", "ascend910b2c"),
        ("Ascend910_9391", "ascend910_9391"),
        ("ascend310p3", None),
        ("310p", None),
        ("ascend950dt_9582", None),
    ],
)
def test_names_of_vllm_ascend_are_taken(given: str, built: str | None) -> None:
    assert chips.chip_to_build_for({"SOC_VERSION": given}) == (given.lower(), built)


@pytest.mark.parametrize("name", ["ascend910b", "Ascend910B", "ascend910a", "ascend910ProB"])
def test_a_name_that_makes_a_910a_build_is_refused(name: str) -> None:
    with pytest.raises(chips.ChipError, match=f"SOC_VERSION is {name}, .*910A") as refusal:
        chips.chip_to_build_for({"SOC_VERSION": name})
    assert "Possible are 910b or ascend910b1" in str(refusal.value)
    assert "Set SOC_VERSION" in str(refusal.value)


@pytest.mark.parametrize("name", ["ascend910b5", "910", "kirinx90", "/tmp"])
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(chips.ChipError, match=f"SOC_VERSION is {name}, which is no chip's name"):
        chips.chip_to_build_for({"SOC_VERSION": name})


LISTED = "\tCard Count                     : 1\n\n\tNPU ID                         : 3\n"
A2_BOARD = "\tNPU ID                         : 3\n\tProduct Name                   : board\n"
A2_CHIP = "\tChip Type                      : Ascend\n\tChip Name                      : 910B3\n"
A3_CHIP = "\tChip Name                      : Ascend910\n\tNPU Name                       : 9392\n"
CH_CHIP = "\tChip Name                      : A2G3\n"
BOARD = ("npu-smi", "info", "-t", "board", "-i", "3")


def smi(chip: str, board: str = A2_BOARD) -> chips.Run:
    answers = {("npu-smi", "info", "-l"): LISTED, BOARD: board, (*BOARD, "-c", "0"): chip}
    return lambda command: answers[tuple(command)]


@pytest.mark.parametrize(
    ("run", "name", "built"),
    [
        (smi(A2_CHIP), "ascend910b3", "ascend910b3"),
        (smi(A3_CHIP), "ascend910_9392", "ascend910_9392"),
        (smi(CH_CHIP), "ascend910b1", "ascend910b1"),
        (smi("", board="Chip Name : Ascend950DT\nNPU Name : 9582\n"), "ascend950dt_9582", None),
    ],
)
def test_without_a_name_npu_smi_is_asked(run: chips.Run, name: str, built: str | None) -> None:
    assert chips.chip_to_build_for({"SOC_VERSION": " "}, run) == (name, built)


def test_a_strange_chip_of_npu_smi_is_refused_by_its_name() -> None:
    with pytest.raises(chips.ChipError, match="npu-smi names the chip ascend910b9, which is no"):
        chips.chip_to_build_for({}, smi(A2_CHIP.replace("910B3", "910B9")))


def missing(command: Sequence[str]) -> str:
    raise FileNotFoundError(command[0])


def failing(command: Sequence[str]) -> str:
    raise subprocess.CalledProcessError(255, command)


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (missing, "there is no npu-smi to ask"),
        (failing, "npu-smi fails: .* 255"),
        (lambda _: "", "npu-smi names no chip"),
    ],
)
def test_without_a_chip_the_names_are_said(run: chips.Run, message: str) -> None:
    with pytest.raises(chips.ChipError, match=f"SOC_VERSION is not set and {message}") as refusal:
        chips.chip_to_build_for({}, run)
    assert "Set SOC_VERSION. Possible are 910b" in str(refusal.value)


def test_a_library_runs_on_all_chips_of_its_build() -> None:
    assert chips.runs_on("ascend910b1", "Ascend910_9392")
    assert chips.runs_on("ascend910_9391", "Ascend910B4-1")
    assert not chips.runs_on("ascend910b1", "Ascend310P3")
    assert not chips.runs_on("ascend910b1", "Ascend910B")
    assert not chips.runs_on("ascend910b1", "")


def test_kernels_for_another_chip_are_refused_with_the_way_to_build_them() -> None:
    assert chips.why_not_launched("ascend910b1", "Ascend910_9392", "") is None
    reason = chips.why_not_launched("ascend310p3", "Ascend910B4-1", "")
    assert reason is not None
    assert "built for ascend310p3, and this NPU is Ascend910B4-1" in reason
    assert "`SOC_VERSION=ascend910b4-1 pip install --force-reinstall" in reason
    reason = chips.why_not_launched("ascend910b1", "Ascend910B3", "its runtime says no")
    assert reason is not None
    assert "this NPU is Ascend910B3; its runtime says no. Build them again" in reason
    assert "for which there are none" in str(
        chips.why_not_launched("ascend910b1", "Ascend310P3", "")
    )
    assert "driver names no chip" in str(chips.why_not_launched("ascend910b1", "", ""))
