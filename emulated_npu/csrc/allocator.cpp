// SPDX-License-Identifier: Apache-2.0
#include "allocator.h"

#include "blocks.h"
#include "device_state.h"
#include "memory_ledger.h"

#include <cstring>

namespace emulated_npu {

namespace {

class EmulatedAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    return allocate_block(bytes, current_device());
  }

  // A storage's context is its Block, not its address, so there is no raw pair of functions.
  c10::DeleterFnPtr raw_deleter() const override {
    return nullptr;
  }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

  bool initialized() override {
    return true;
  }

  // Memory goes back to the host at once; nothing is cached.
  void emptyCache(c10::MempoolId_t /*pool*/) override {}

  // Every operator has ended when its call returns, so no stream can still use freed memory.
  void recordStream(const c10::DataPtr& /*data*/, c10::Stream /*stream*/) override {}

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    return MemoryLedger::stats(device);
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    MemoryLedger::reset_accumulated(device);
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    MemoryLedger::reset_peak(device);
  }

  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    return MemoryLedger::free_and_total(device);
  }
};

}  // namespace

c10::DeviceAllocator* device_allocator() {
  // Never destroyed: storages may outlive static destruction.
  static auto* instance = new EmulatedAllocator();
  return instance;
}

}  // namespace emulated_npu
