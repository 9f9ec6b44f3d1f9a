// SPDX-License-Identifier: Apache-2.0
// The allocator of the emulated device: host memory, charged to the ledger.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

namespace emulated_npu {

// The allocator of all npu storages. It allocates on the current device of the calling thread.
c10::DeviceAllocator* device_allocator();

}  // namespace emulated_npu
