// SPDX-License-Identifier: Apache-2.0
#include "pinned_memory.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>

namespace emulated_npu {

namespace {

constexpr size_t kHostAlignment = 64;

struct PinnedBlock {
  size_t size;
  uint64_t serial;
};

struct PinnedBlocks {
  std::mutex mutex;
  std::map<const char*, PinnedBlock, std::less<>>
      blocks;  // ordered, to find the block of an inner address
  uint64_t last_serial = 0;
};

PinnedBlocks& pinned_blocks() {
  static auto* blocks = new PinnedBlocks();
  return *blocks;
}

void free_pinned(void* data) {
  if (data == nullptr) {
    return;
  }
  {
    auto& blocks = pinned_blocks();
    std::lock_guard<std::mutex> lock(blocks.mutex);
    blocks.blocks.erase(static_cast<const char*>(data));
  }
  std::free(data);
}

// PyTorch asks the allocator of the host for its cache, for instance when vLLM ends an engine.
class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device host(c10::DeviceType::CPU);
    if (bytes == 0) {
      return {nullptr, nullptr, &free_pinned, host};
    }
    void* data = nullptr;
    TORCH_CHECK(
        posix_memalign(&data, kHostAlignment, bytes) == 0, "the host has no ", bytes,
        " bytes for pinned memory");
    auto& blocks = pinned_blocks();
    std::lock_guard<std::mutex> lock(blocks.mutex);
    blocks.blocks.emplace(static_cast<const char*>(data), PinnedBlock{bytes, ++blocks.last_serial});
    return {data, data, &free_pinned, host};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_pinned;
  }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }

  // A block that is freed goes back to the system at once: there is no cache to empty or to count.
  bool record_event(void* /*data*/, void* /*context*/, c10::Stream /*stream*/) override {
    return false;
  }

  void empty_cache() override {}

  at::HostStats get_stats() override {
    return {};
  }

  void reset_accumulated_stats() override {}

  void reset_peak_stats() override {}
};

}  // namespace

at::HostAllocator* pinned_allocator() {
  static auto* instance = new PinnedAllocator();
  return instance;
}

bool is_pinned(const void* address) {
  return pinned_serial(address) != 0;
}

uint64_t pinned_serial(const void* address) {
  const auto* wanted = static_cast<const char*>(address);
  auto& blocks = pinned_blocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  auto after = blocks.blocks.upper_bound(wanted);
  if (after == blocks.blocks.begin()) {
    return 0;
  }
  const auto& [start, block] = *std::prev(after);
  return wanted < start + block.size ? block.serial : 0;
}

}  // namespace emulated_npu
