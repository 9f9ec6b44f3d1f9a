// SPDX-License-Identifier: Apache-2.0
// Memory that an allocator of the user's own hands out: torch.npu.memory.MemPool.
//
// vllm-ascend's sleep mode plugs its own allocator into a pool. It knows each piece of memory of
// the pool by its address, and can take away the memory behind that address and give it some again.
// Here every block of such a pool is a piece of its own; torch_npu cuts several from one segment.
#pragma once

#include <cstddef>
#include <cstdint>

namespace emulated_npu {

// Told of each block of the pool: its device, its bytes and its address.
using BlockCallback = void (*)(int32_t device, int64_t bytes, int64_t address);

// Whether what this thread allocates belongs to the pool.
bool allocates_in_mem_pool();

// Tells the plugged allocator of a block. No lock may be held: it runs Python.
void tell_allocated(int32_t device, size_t bytes, const void* address);
void tell_freed(int32_t device, size_t bytes, const void* address);

}  // namespace emulated_npu

extern "C" {
// From now on, what this thread allocates belongs to the pool, or does not. Returns whether it did.
__attribute__((visibility("default"))) int32_t emulated_npu_use_mem_pool(int32_t is_used);

// Null pointers: nobody is told any more.
__attribute__((visibility("default"))) void emulated_npu_set_block_callbacks(
    emulated_npu::BlockCallback allocated, emulated_npu::BlockCallback freed);
}
