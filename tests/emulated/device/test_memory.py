# SPDX-License-Identifier: Apache-2.0
"""Memory accounting is exact: allocations, results of kernels, peaks, the limit."""

from __future__ import annotations

import gc

import pytest
import torch

from emulated_npu.device.native import cpu_alias, npu_alias
from emulated_npu.settings import settings

MIB = 2**20


def in_use(device: int = 0) -> int:
    return torch.npu.memory_allocated(device)


def test_an_allocation_counts_while_it_lives(memory_in_use: int) -> None:
    x = torch.empty(3 * MIB, dtype=torch.uint8, device="npu")
    assert in_use() == memory_in_use + 3 * MIB
    view = x[5:]
    del x
    assert in_use() == memory_in_use + 3 * MIB, "a view keeps the memory"
    del view
    assert in_use() == memory_in_use


def test_sizes_are_rounded_up_to_512_bytes(memory_in_use: int) -> None:
    one_byte = torch.empty(1, dtype=torch.uint8, device="npu")
    assert in_use() == memory_in_use + 512
    more = torch.empty(513, dtype=torch.uint8, device="npu")
    assert in_use() == memory_in_use + 512 + 1024
    nothing = torch.empty(0, device="npu")
    assert in_use() == memory_in_use + 512 + 1024
    del one_byte, more, nothing


@pytest.mark.parametrize(
    "operation",
    [
        lambda x: x + 1,  # a structured operator: PyTorch allocates the result on the device
        lambda x: torch.cat([x, x])[: x.numel()].clone(),
        lambda x: torch.nn.functional.embedding(
            torch.zeros(4, dtype=torch.int64).npu(), x.view(4, -1)
        ),
        lambda x: torch.nonzero(x + 1).to(torch.float32)[:, 0].contiguous(),
        lambda x: torch.flip(x, [0]),  # not structured: the CPU kernel allocates the result
    ],
    ids=["add", "cat", "embedding", "nonzero", "flip"],
)
def test_results_of_kernels_count_while_they_live(operation, memory_in_use: int) -> None:
    x = torch.arange(MIB, dtype=torch.float32, device="npu")
    y = operation(x)
    gc.collect()
    assert y.numel() == x.numel()
    assert in_use() == memory_in_use + 8 * MIB
    del x, y
    assert in_use() == memory_in_use


def test_peak_is_the_most_in_use_at_once(memory_in_use: int) -> None:
    x = torch.empty(MIB, dtype=torch.uint8, device="npu")
    y = torch.flip(x, [0])
    del y
    z = torch.empty(MIB // 2, dtype=torch.uint8, device="npu")
    assert torch.npu.max_memory_allocated() == memory_in_use + 2 * MIB
    assert torch.accelerator.max_memory_allocated(0) == memory_in_use + 2 * MIB
    torch.npu.reset_peak_memory_stats()
    assert torch.npu.max_memory_allocated() == memory_in_use + MIB + MIB // 2
    del x, z


def test_each_device_has_its_own_account(memory_in_use: int) -> None:
    before = in_use(1)
    x = torch.empty(MIB, dtype=torch.uint8, device="npu:1")
    assert in_use(0) == memory_in_use
    assert in_use(1) == before + MIB
    y = torch.flip(x, [0])
    assert in_use(1) == before + 2 * MIB, "a result belongs to the device of the operands"
    z = x.to("npu:0")
    assert in_use(0) == memory_in_use + MIB
    del x, y, z
    assert in_use(1) == before


def test_in_place_and_resized_outputs(memory_in_use: int) -> None:
    x = torch.zeros(MIB, dtype=torch.uint8, device="npu")
    x.add_(1).flip([0])
    assert in_use() == memory_in_use + MIB
    out = torch.empty(0, dtype=torch.uint8, device="npu")
    torch.cat([x, x], out=out)
    assert in_use() == memory_in_use + 3 * MIB
    torch.mul(x, 2, out=out.resize_(0))
    x.resize_(2 * MIB)
    assert in_use() == memory_in_use + 4 * MIB
    del x, out
    assert in_use() == memory_in_use


def test_aliases_are_free_and_adopted_memory_is_charged(memory_in_use: int) -> None:
    x = torch.empty(MIB, dtype=torch.uint8, device="npu")
    host_name = cpu_alias(x)
    assert host_name.device.type == "cpu"
    assert host_name.data_ptr() == x.data_ptr()
    back = npu_alias(host_name[10:].view(-1, 2))
    assert back.device == x.device
    assert back.untyped_storage().data_ptr() == x.untyped_storage().data_ptr()
    assert in_use() == memory_in_use + MIB
    adopted = npu_alias(torch.zeros(MIB, dtype=torch.uint8), 1)
    assert adopted.device.index == 1
    assert in_use(0) == memory_in_use + MIB
    del x, back
    assert in_use() == memory_in_use + MIB, "an alias keeps the memory alive"
    del host_name, adopted
    assert in_use() == memory_in_use


def test_free_memory_and_statistics(memory_in_use: int) -> None:
    x = torch.empty(MIB, dtype=torch.uint8, device="npu")
    total = settings().memory_bytes
    assert torch.npu.mem_get_info() == (total - memory_in_use - MIB, total)
    assert torch.npu.get_device_properties().total_memory == total
    stats = torch.npu.memory_stats()
    assert stats["allocated_bytes.all.current"] == memory_in_use + MIB
    assert stats["reserved_bytes.all.current"] == memory_in_use + MIB
    assert stats == dict(torch.accelerator.memory_stats(0))
    del x


def test_out_of_memory_says_everything_and_takes_nothing(memory_in_use: int) -> None:
    total = settings().memory_bytes
    failures = torch.npu.memory_stats()["num_ooms"]
    held = torch.empty(MIB, dtype=torch.uint8, device="npu")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(total, dtype=torch.uint8, device="npu")
    message = str(caught.value)
    assert "npu:0" in message
    assert f"({total} bytes)" in message, "what was asked, and the limit"
    assert f"({memory_in_use + MIB} bytes) of its limit" in message
    assert f"({total - memory_in_use - MIB} bytes) are free" in message
    for remedy in (
        "gpu_memory_utilization",
        "max_model_len",
        "max_num_batched_tokens",
        "EMULATED_NPU_MEMORY",
    ):
        assert remedy in message
    assert in_use() == memory_in_use + MIB
    assert torch.npu.memory_stats()["num_ooms"] == failures + 1
    assert torch.npu.max_memory_allocated() == memory_in_use + MIB
    del held, caught
    assert in_use() == memory_in_use


def test_the_last_free_byte_can_be_used(memory_in_use: int) -> None:
    # The pages are never touched, so the host need not have them.
    free, _ = torch.npu.mem_get_info()
    filler = torch.empty(free, dtype=torch.uint8, device="npu")
    assert torch.npu.mem_get_info()[0] == 0
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1, device="npu")
    with pytest.raises(torch.OutOfMemoryError):
        # a result that a CPU kernel allocated does not fit either
        torch.ops.aten.nonzero(filler[:1] * 0 == 0)
    del filler
    assert in_use() == memory_in_use


def test_a_result_beyond_the_limit_is_refused(memory_in_use: int) -> None:
    source = torch.ones(MIB, dtype=torch.uint8, device="npu")
    free, _ = torch.npu.mem_get_info()
    filler = torch.empty(free - MIB // 2, dtype=torch.uint8, device="npu")
    with pytest.raises(torch.OutOfMemoryError, match=f"asked for 1.00 MiB .{MIB} bytes"):
        torch.flip(source, [0])
    del filler
    assert torch.flip(source, [0]).numel() == MIB
    del source
    assert in_use() == memory_in_use
