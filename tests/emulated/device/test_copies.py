# SPDX-License-Identifier: Apache-2.0
"""Copies between host and devices, and pinned memory."""

from __future__ import annotations

import pytest
import torch


def test_copies_convert_dtype_and_broadcast() -> None:
    target = torch.empty(2, 3, dtype=torch.int32, device="npu")
    target.copy_(torch.tensor([1.9, 2.9, 3.9]))
    assert target.tolist() == [[1, 2, 3]] * 2
    host = torch.empty(2, 3, dtype=torch.float64)
    assert host.copy_(target) is host
    assert host.tolist() == [[1.0, 2.0, 3.0]] * 2


def test_a_copy_is_not_an_alias() -> None:
    host = torch.zeros(2)
    device = host.to("npu")
    device.add_(1)
    assert host.tolist() == [0.0, 0.0]
    back = device.cpu()
    device.add_(1)
    assert back.tolist() == [1.0, 1.0]


def test_copies_between_devices() -> None:
    first = torch.arange(3, device="npu:0")
    second = first.to("npu:1")
    assert second.device.index == 1
    first.zero_()
    assert second.tolist() == [0, 1, 2]
    assert (second + 1).device.index == 1, "results stay on the operands' device"
    assert torch.npu.current_device() == 0


def test_current_device_decides_where_npu_is() -> None:
    with torch.npu.device(1):
        assert torch.empty(1, device="npu").device.index == 1
        assert torch.ones(1).npu().device.index == 1
    assert torch.empty(1, device="npu").device.index == 0


def test_strided_copies() -> None:
    device = torch.arange(12, device="npu").view(3, 4)
    assert device.t().cpu().tolist() == torch.arange(12).view(3, 4).t().tolist()
    host = torch.zeros(4, 3, dtype=torch.int64)
    host.t().copy_(device)
    assert host.t().tolist() == device.tolist()


def test_pinned_memory() -> None:
    plain = torch.arange(4.0)
    pinned = plain.pin_memory()
    assert not plain.is_pinned()
    assert pinned.is_pinned()
    assert pinned[2:].is_pinned(), "a view of pinned memory is pinned"
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert pinned.device.type == "cpu"
    address = pinned.data_ptr()
    del pinned
    assert not torch.empty(4).is_pinned() or torch.empty(4).data_ptr() != address


def test_the_hosts_cache_can_be_emptied() -> None:
    """As vLLM 0.30.0 does when an engine ends."""
    pinned = torch.arange(6, pin_memory=True)
    copied = pinned.to("npu", non_blocking=True)
    torch.accelerator.empty_host_cache()
    assert copied.cpu().tolist() == list(range(6))
    assert pinned.is_pinned()


def test_non_blocking_copies() -> None:
    device = torch.arange(4.0).pin_memory().to("npu", non_blocking=True)
    host = device.to("cpu", non_blocking=True)
    assert host.is_pinned(), "PyTorch copies into pinned memory when asked not to wait"
    assert host.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_numpy_of_device_memory_is_refused() -> None:
    with pytest.raises(TypeError, match="cpu"):
        torch.ones(1, device="npu").numpy()
