// SPDX-License-Identifier: Apache-2.0
#include "counters.h"

#include <atomic>
#include <mutex>

namespace emulated_npu {

namespace {

struct SharedCounts {
  std::mutex mutex;
  Counts counts;
};

SharedCounts& shared_counts() {
  static auto* instance = new SharedCounts();
  return *instance;
}

std::atomic<HostReadCallback> host_read_callback{nullptr};

}  // namespace

void record_launch(const std::string& operator_name) {
  auto& shared = shared_counts();
  std::lock_guard<std::mutex> lock(shared.mutex);
  ++shared.counts.launches[operator_name];
}

void record_graph_launch(const std::string& operator_name) {
  auto& shared = shared_counts();
  std::lock_guard<std::mutex> lock(shared.mutex);
  ++shared.counts.graph_launches[operator_name];
}

void record_copy_to_device(int64_t bytes) {
  auto& shared = shared_counts();
  std::lock_guard<std::mutex> lock(shared.mutex);
  shared.counts.bytes_to_device += bytes;
}

void record_copy_to_host(int64_t bytes) {
  auto& shared = shared_counts();
  std::lock_guard<std::mutex> lock(shared.mutex);
  shared.counts.bytes_to_host += bytes;
}

void record_host_read(int64_t bytes, bool asynchronous) {
  if (auto callback = host_read_callback.load()) {
    callback(bytes, asynchronous ? 1 : 0);
  }
}

Counts counts() {
  auto& shared = shared_counts();
  std::lock_guard<std::mutex> lock(shared.mutex);
  return shared.counts;
}

void reset_counts() {
  auto& shared = shared_counts();
  std::lock_guard<std::mutex> lock(shared.mutex);
  shared.counts = Counts();
}

}  // namespace emulated_npu

void emulated_npu_set_host_read_callback(emulated_npu::HostReadCallback callback) {
  emulated_npu::host_read_callback.store(callback);
}
