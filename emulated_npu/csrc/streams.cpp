// SPDX-License-Identifier: Apache-2.0
#include "streams.h"

#include "device_state.h"

#include <array>
#include <atomic>

namespace emulated_npu {

namespace {
// Id 0 is the default stream of every device.
std::atomic<c10::StreamId> next_stream_id{1};
thread_local std::array<c10::StreamId, kMaxDevices> current_stream_ids{};
}  // namespace

c10::Stream default_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::DEFAULT, npu(device));
}

c10::Stream new_stream(c10::DeviceIndex device) {
  return c10::Stream(c10::Stream::UNSAFE, npu(device), next_stream_id++);
}

c10::Stream current_stream(c10::DeviceIndex device) {
  const auto index = resolve_index(device);
  return c10::Stream(c10::Stream::UNSAFE, npu(index), current_stream_ids.at(index));
}

c10::Stream exchange_stream(c10::Stream stream) {
  const auto index = resolve_index(stream.device_index());
  const auto previous = current_stream(index);
  current_stream_ids.at(index) = stream.id();
  return previous;
}

}  // namespace emulated_npu
