// SPDX-License-Identifier: Apache-2.0
// Exact counts of what a program asked of the device: they depend on the program alone, not on
// time.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

namespace emulated_npu {

// Counts one operator launch on the device. Views, allocation and metadata changes are not
// launches.
void record_launch(const std::string& operator_name);

// Counts one operator that a graph launched: the host did nothing for it.
void record_graph_launch(const std::string& operator_name);

void record_copy_to_device(int64_t bytes);
void record_copy_to_host(int64_t bytes);

// Tells Python that the host read device memory; Python adds the place in the calling code, which
// only it can see. `asynchronous`: the host did not wait for the data (a non-blocking copy into
// pinned memory).
void record_host_read(int64_t bytes, bool asynchronous);

using HostReadCallback = void (*)(int64_t bytes, int32_t asynchronous);

// Called before each launch, by the host or a graph, where faults may be asked for.
using LaunchCallback = void (*)(const char* operator_name);

// Raises the error of a launch that failed, if there is one: a device tells it when the host waits.
void raise_device_error();

struct Counts {
  std::unordered_map<std::string, int64_t> launches;
  std::unordered_map<std::string, int64_t> graph_launches;
  int64_t bytes_to_device = 0;
  int64_t bytes_to_host = 0;
};

Counts counts();
void reset_counts();

}  // namespace emulated_npu

// Called through ctypes, which takes the interpreter lock around the callback; this library itself
// does not need Python's headers. A null pointer switches the callback off.
extern "C" __attribute__((visibility("default"))) void emulated_npu_set_host_read_callback(
    emulated_npu::HostReadCallback callback);
extern "C" __attribute__((visibility("default"))) void emulated_npu_set_launch_callback(
    emulated_npu::LaunchCallback callback);
// From now on whoever waits for the device fails with `text`; null: nobody.
extern "C" __attribute__((visibility("default"))) void emulated_npu_set_device_error(
    const char* text);
