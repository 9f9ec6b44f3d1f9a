# SPDX-License-Identifier: Apache-2.0
"""Pools with an allocator of the user's own, as vllm-ascend's sleep mode plugs one in."""

from __future__ import annotations

import ctypes
import gc
from collections.abc import Iterator

import pytest
import torch
import torch_npu

DEVICE = "npu"
MIB = 1 << 20
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
