// SPDX-License-Identifier: Apache-2.0
#include "counters.h"

#include <c10/util/Exception.h>

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
std::atomic<LaunchCallback> launch_callback{nullptr};

struct DeviceError {
  std::atomic<bool> is_set{false};
  std::mutex mutex;
  std::string text;
};

DeviceError& device_error() {
  static auto* instance = new DeviceError();
  return *instance;
}

void tell_launch(const std::string& operator_name) {
  if (auto callback = launch_callback.load()) {
    callback(operator_name.c_str());
  }
}

}  // namespace

void record_launch(const std::string& operator_name) {
  tell_launch(operator_name);
  auto& shared = shared_counts();
  std::lock_guard<std::mutex> lock(shared.mutex);
  ++shared.counts.launches[operator_name];
}

void record_graph_launch(const std::string& operator_name) {
  tell_launch(operator_name);
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
  if (!asynchronous) {
    raise_device_error();
  }
}

void raise_device_error() {
  auto& error = device_error();
  if (error.is_set.load()) {
    std::lock_guard<std::mutex> lock(error.mutex);
    TORCH_CHECK(!error.is_set.load(), error.text);
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

void emulated_npu_set_launch_callback(emulated_npu::LaunchCallback callback) {
  emulated_npu::launch_callback.store(callback);
}

void emulated_npu_set_device_error(const char* text) {
  auto& error = emulated_npu::device_error();
  std::lock_guard<std::mutex> lock(error.mutex);
  error.text = text == nullptr ? "" : text;
  error.is_set.store(text != nullptr);
}
