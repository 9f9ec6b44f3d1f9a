// SPDX-License-Identifier: Apache-2.0
#include "mem_pool.h"

#include <atomic>

namespace emulated_npu {

namespace {

thread_local bool is_used_by_this_thread = false;
std::atomic<BlockCallback> allocated_callback{nullptr};
std::atomic<BlockCallback> freed_callback{nullptr};

void tell(BlockCallback callback, int32_t device, size_t bytes, const void* address) {
  if (callback != nullptr) {
    callback(device, static_cast<int64_t>(bytes), reinterpret_cast<int64_t>(address));
  }
}

}  // namespace

bool allocates_in_mem_pool() {
  return is_used_by_this_thread;
}

void tell_allocated(int32_t device, size_t bytes, const void* address) {
  tell(allocated_callback.load(), device, bytes, address);
}

void tell_freed(int32_t device, size_t bytes, const void* address) {
  tell(freed_callback.load(), device, bytes, address);
}

}  // namespace emulated_npu

int32_t emulated_npu_use_mem_pool(int32_t is_used) {
  const auto before = emulated_npu::is_used_by_this_thread;
  emulated_npu::is_used_by_this_thread = is_used != 0;
  return before ? 1 : 0;
}

void emulated_npu_set_block_callbacks(
    emulated_npu::BlockCallback allocated, emulated_npu::BlockCallback freed) {
  emulated_npu::allocated_callback.store(allocated);
  emulated_npu::freed_callback.store(freed);
}
