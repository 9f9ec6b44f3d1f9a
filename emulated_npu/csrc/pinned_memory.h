// SPDX-License-Identifier: Apache-2.0
// "Pinned" host memory: ordinary host memory that is remembered, so that is_pinned() is true of it.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <cstdint>

namespace emulated_npu {

at::HostAllocator* pinned_allocator();

// Whether `address` lies in a live block of the pinned allocator.
bool is_pinned(const void* address);

// The number of the allocation that holds the address, unlike any other's; 0 when none does.
uint64_t pinned_serial(const void* address);

}  // namespace emulated_npu
