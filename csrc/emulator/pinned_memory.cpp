// SPDX-License-Identifier: Apache-2.0
#include "pinned_memory.h"

#include <c10/util/Exception.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>

namespace mkv::emulator {

namespace {

constexpr size_t kHostAlignment = 64;

struct PinnedBlocks {
  std::mutex mutex;
  std::map<const char*, size_t, std::less<>>
      size_of;  // ordered, to find the block of an inner address
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
    blocks.size_of.erase(static_cast<const char*>(data));
  }
  std::free(data);
}

class PinnedAllocator final : public c10::Allocator {
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
    blocks.size_of.emplace(static_cast<const char*>(data), bytes);
    return {data, data, &free_pinned, host};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &free_pinned;
  }

  void copy_data(void* destination, const void* source, std::size_t bytes) const override {
    std::memcpy(destination, source, bytes);
  }
};

}  // namespace

c10::Allocator* pinned_allocator() {
  static auto* instance = new PinnedAllocator();
  return instance;
}

bool is_pinned(const void* address) {
  const auto* wanted = static_cast<const char*>(address);
  auto& blocks = pinned_blocks();
  std::lock_guard<std::mutex> lock(blocks.mutex);
  auto after = blocks.size_of.upper_bound(wanted);
  if (after == blocks.size_of.begin()) {
    return false;
  }
  const auto& [start, size] = *std::prev(after);
  return wanted < start + size;
}

}  // namespace mkv::emulator
