// SPDX-License-Identifier: Apache-2.0
// The device's memory by address: who owns each block, and who only knows its address.
//
// A graph and a weak reference know an address without owning it. On a device, freed memory gets a
// new owner, and they read his data. Here a freed block that somebody still knows is filled with
// 0xFF (NaN, -1) and kept, so that its address is never given away and a replay can say whose it
// was. Memory of a graph's pool goes back to the pool instead (pool_memory.h): graphs that share a
// pool overwrite each other's intermediate results, as on a device.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/core/Storage.h>

#include <cstddef>
#include <cstdint>

namespace emulated_npu {

// Memory of `bytes`, charged to the device: from the pool of the current stream's capture, whose
// fresh memory reads as zeros while capturing, or from the host.
c10::DataPtr allocate_block(size_t bytes, c10::DeviceIndex device);

// Makes the memory of a CPU storage device memory: charged while it lives.
c10::DataPtr adopt_block(const c10::Storage& cpu_storage, c10::DeviceIndex device);

// A tensor over the same memory that does not keep it alive.
at::Tensor weak_reference(const at::Tensor& tensor);

// Whether a storage made by weak_reference outlived the memory it refers to. Memory of a pool
// outlives its tensors.
bool is_freed_block(const c10::Storage& storage);

// Whether the memory was handed out while this tape was recorded.
bool is_block_of_tape(const void* address, int64_t tape);

// Fills all memory that was handed out while this tape was recorded.
void poison_blocks_of(int64_t tape);

// Takes the memory behind the address of a block away, or gives it some again, whose content is
// not what was there. The address stays the block's. Of a block that is freed, or is as asked for
// already, nothing changes. map_block throws c10::OutOfMemoryError.
void unmap_block(int64_t address);
void map_block(int64_t address);

// A pool keeps its memory while a graph uses it.
void open_pool(int64_t pool);
void close_pool(int64_t pool);

}  // namespace emulated_npu
