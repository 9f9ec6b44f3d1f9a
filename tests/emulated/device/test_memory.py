# SPDX-License-Identifier: Apache-2.0
"""Memory accounting is exact: allocations, results of kernels, peaks, the limit."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

import pytest
import torch
import torch_npu

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


# Pools with an allocator of the user's own, as vllm-ascend's sleep mode plugs one in.

DEVICE = "npu"
PARAMETER_ERROR = 100000  # ACL_ERROR_INVALID_PARAM


class Blocks:
    """What an allocator is told: the blocks that a pool has, by address."""

    def __init__(self) -> None:
        self.handles: dict[int, tuple[int, int, int, int]] = {}

    def allocated(self, handle: tuple[int, int, int, int]) -> None:
        self.handles[handle[2]] = handle

    def freed(self, address: int) -> tuple[int, int, int, int]:
        return self.handles.pop(address)

    def of(self, tensor: torch.Tensor) -> tuple[int, int, int, int]:
        return self.handles[tensor.untyped_storage().data_ptr()]


@pytest.fixture
def blocks() -> Iterator[Blocks]:
    from vllm_ascend.vllm_ascend_C import init_module

    gc.collect()  # else memory that earlier tests left is freed while one of these counts
    known = Blocks()
    init_module(known.allocated, known.freed)
    yield known
    assert not known.handles, "all blocks of the test are freed"


def pool() -> torch.npu.memory.use_mem_pool:
    allocator = torch.npu.memory.NPUPluggableAllocator(None, "my_malloc", "my_free")
    return torch.npu.memory.use_mem_pool(torch.npu.memory.MemPool(allocator.allocator()))


def unmap(handle: tuple[int, int, int, int]) -> None:
    from vllm_ascend.vllm_ascend_C import python_unmap_and_release

    python_unmap_and_release(*handle)


def map_again(handle: tuple[int, int, int, int]) -> None:
    from vllm_ascend.vllm_ascend_C import python_create_and_map

    python_create_and_map(*handle)


def test_the_allocator_is_told_of_what_is_allocated_in_the_pool_alone(blocks: Blocks) -> None:
    before = torch.zeros(2, 4, device=DEVICE)
    with pool():
        empty = torch.empty(1000, dtype=torch.int8, device=DEVICE)  # of the device's allocator
        result = before + 1
        adopted = torch_npu.npu_rms_norm(before, before[0])[0]  # made on the host by our kernel
        copied = torch.ones(3).to(DEVICE)
        with pool():
            inner = torch.empty(1, device=DEVICE)
        behind_it = torch.empty(1, device=DEVICE)
    after = torch.zeros(4, device=DEVICE)
    of_the_pool = [empty, result, adopted, copied, inner, behind_it]
    addresses = {tensor.untyped_storage().data_ptr() for tensor in of_the_pool}
    assert set(blocks.handles) == addresses
    assert not addresses & {before.data_ptr(), after.data_ptr()}
    device, size, address, _ = blocks.of(empty)
    assert (device, size, address) == (0, 1024, empty.data_ptr())
    del of_the_pool, empty
    assert set(blocks.handles) == addresses - {address}


def test_memory_that_is_taken_away_is_free_and_its_content_is_gone(blocks: Blocks) -> None:
    with pool():
        tensor = torch.full((MIB // 4,), 7.0, device=DEVICE)
    address, in_use = tensor.data_ptr(), torch.npu.memory_allocated()
    unmap(blocks.of(tensor))
    unmap(blocks.of(tensor))  # it is gone already
    assert torch.npu.memory_allocated() == in_use - MIB
    map_again(blocks.of(tensor))
    map_again(blocks.of(tensor))
    assert torch.npu.memory_allocated() == in_use
    assert tensor.data_ptr() == address
    assert tensor.isnan().all()
    tensor.fill_(5.0)
    assert tensor.sum() == 5 * MIB // 4


def test_memory_of_others_is_not_given_again(blocks: Blocks) -> None:
    free, _ = torch.npu.mem_get_info()
    with pool():
        tensor = torch.empty(free // 2, dtype=torch.int8, device=DEVICE)
    unmap(blocks.of(tensor))
    other = torch.empty(free // 4 * 3, dtype=torch.int8, device=DEVICE)
    with pytest.raises(torch.OutOfMemoryError):
        map_again(blocks.of(tensor))
    del other
    map_again(blocks.of(tensor))
    assert torch.npu.mem_get_info()[0] <= free - free // 2


def test_memory_that_is_freed_asleep_is_given_back_once(blocks: Blocks) -> None:
    before = torch.npu.memory_allocated()
    with pool():
        tensor = torch.empty(MIB, dtype=torch.int8, device=DEVICE)
    unmap(blocks.of(tensor))
    del tensor
    assert torch.npu.memory_allocated() == before


def test_copies_between_host_and_device() -> None:
    import acl.rt

    tensor = torch.arange(6.0, device=DEVICE)
    host = (ctypes.c_float * 6)()
    address = ctypes.addressof(host)
    size = tensor.untyped_storage().nbytes()
    assert acl.rt.memcpy(address, size, tensor.data_ptr(), size, 2) == 0
    assert list(host) == [0, 1, 2, 3, 4, 5]
    host[0] = 9
    assert acl.rt.memcpy(tensor.data_ptr(), size, address, size, 1) == 0
    assert tensor.tolist() == [9, 1, 2, 3, 4, 5]
    assert acl.rt.memcpy(tensor.data_ptr(), size - 1, address, size, 1) == PARAMETER_ERROR


def test_a_pool_needs_an_allocator() -> None:
    with pytest.raises(NotImplementedError, match="MemPool without an allocator"):
        torch.npu.memory.MemPool()
