// SPDX-License-Identifier: Apache-2.0
// Accounts for device memory: what each emulated device holds, its peak, and its limit.
//
// "Device memory" is host memory here, so nothing limits it by itself; the ledger does. It counts
//   - storages that the device's allocator made, and
//   - results of CPU kernels that became npu tensors, for as long as their storage lives.
// It does not count temporaries inside a CPU kernel: they are host memory of a kernel that a real
// device does not have, and a real kernel's workspace has another size. So a peak on the emulated
// device is a lower bound of the peak on hardware. Every process has its own ledger.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>
#include <utility>

namespace emulated_npu {

// Sizes are rounded up to this, as the caching allocator of torch_npu does.
constexpr size_t kAllocationGranularity = 512;

class MemoryLedger {
 public:
  // Charges `bytes` (rounded up) to a device and returns what was charged; zero bytes are free.
  // Throws c10::OutOfMemoryError, with nothing charged, when the device's limit would be passed.
  static size_t charge(c10::DeviceIndex device, size_t bytes);

  // Takes back what charge() returned.
  static void discharge(c10::DeviceIndex device, size_t charged) noexcept;

  static c10::CachingDeviceAllocator::DeviceStats stats(c10::DeviceIndex device);
  static void reset_peak(c10::DeviceIndex device);
  static void reset_accumulated(c10::DeviceIndex device);

  // {free bytes, limit}
  static std::pair<size_t, size_t> free_and_total(c10::DeviceIndex device);
};

}  // namespace emulated_npu

// For faults that are asked for: the next allocation, on any device, finds no memory.
extern "C" __attribute__((visibility("default"))) void emulated_npu_refuse_next_allocation();
