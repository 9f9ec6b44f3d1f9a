# SPDX-License-Identifier: Apache-2.0
"""Which kernels are chosen, and what is said when there are none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from mkv_ascend import ops
from mkv_ascend.ops import implementations
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


def test_a_device_that_runs_cpu_kernels_needs_none_of_its_own(
    choosing: pytest.MonkeyPatch,
) -> None:
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
