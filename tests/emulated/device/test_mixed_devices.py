# SPDX-License-Identifier: Apache-2.0
"""Strict mode refuses operands on different devices, with PyTorch's rules and words."""

from __future__ import annotations

import pytest
import torch

REFUSED = "Expected all tensors to be on the same device, but found at least two devices"


@pytest.mark.usefixtures("strict_devices")
class TestStrict:
    @pytest.mark.parametrize(
        "operation",
        [
            lambda npu, cpu: npu + cpu,
            lambda npu, cpu: cpu + npu,
            lambda npu, cpu: npu.add_(cpu),
            lambda npu, cpu: npu.view(1, 3) @ cpu.view(3, 1),
            lambda npu, cpu: torch.cat([npu, cpu]),
            lambda npu, cpu: torch.where(npu > 0, npu, cpu),
            lambda npu, cpu: torch.add(npu, npu, out=cpu),
            lambda npu, cpu: npu.index_select(0, cpu.long()),
            lambda npu, cpu: npu.gather(0, cpu.long()),
            lambda npu, cpu: npu.scatter_(0, npu.long(), cpu),
            lambda npu, cpu: torch.nn.functional.embedding(cpu.long(), npu.view(3, 1)),
        ],
    )
    def test_host_tensors_are_refused(self, operation) -> None:
        npu, cpu = torch.zeros(3, device="npu"), torch.zeros(3)
        with pytest.raises(RuntimeError, match=f"{REFUSED}, (npu:0 and cpu|cpu and npu:0)"):
            operation(npu, cpu)

    def test_two_devices_are_refused(self) -> None:
        with pytest.raises(RuntimeError, match=f"{REFUSED}, npu:0 and npu:1"):
            torch.zeros(2, device="npu:0") + torch.zeros(2, device="npu:1")

    def test_host_scalars_are_allowed(self) -> None:
        x = torch.ones(3, device="npu")
        assert (x * torch.tensor(2.0)).tolist() == [2.0] * 3
        assert torch.where(x > 0, torch.tensor(5.0), x).tolist() == [5.0] * 3

    def test_host_indices_are_allowed_in_indexing(self) -> None:
        x = torch.arange(3, device="npu")
        assert x[torch.tensor([2, 0])].tolist() == [2, 0]
        x[torch.tensor([1])] = 7
        assert x.tolist() == [0, 7, 2]
        x[torch.tensor([True, False, False])] = torch.tensor(9, device="npu")
        assert x.tolist() == [9, 7, 2]

    def test_host_values_are_refused_in_index_assignment(self) -> None:
        x = torch.arange(3, device="npu")
        with pytest.raises(RuntimeError, match=REFUSED):
            torch.index_put_(x, (torch.tensor([0, 1]),), torch.tensor([5, 6]))

    def test_copies_cross_devices(self) -> None:
        x = torch.zeros(3, device="npu")
        x.copy_(torch.ones(3))
        x[1:] = torch.tensor([4.0, 5.0])  # assignment to a slice is a copy
        assert x.tolist() == [1.0, 4.0, 5.0]

    def test_a_refused_call_changes_nothing(self) -> None:
        x = torch.zeros(3, device="npu")
        with pytest.raises(RuntimeError, match=REFUSED):
            x.add_(torch.ones(3))
        assert x.tolist() == [0.0] * 3


@pytest.mark.usefixtures("lenient_devices")
def test_without_strict_mode_host_tensors_are_taken() -> None:
    # Only where PyTorch itself does not refuse them, as it does in additions.
    x = torch.tensor([5.0, 6.0, 7.0], device="npu")
    result = torch.nn.functional.embedding(torch.tensor([2, 0]), x.view(3, 1))
    assert result.device.type == "npu"
    assert result.tolist() == [[7.0], [5.0]]
    assert torch.nonzero(x, out=torch.empty(0, dtype=torch.int64)).device.type == "cpu"
    assert torch.mm(x.view(1, 3), torch.ones(3, 1)).tolist() == [[18.0]]
