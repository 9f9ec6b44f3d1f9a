// SPDX-License-Identifier: Apache-2.0
// C entry points around launches. Compile it into the library that holds the kernels.
#include "kernel_operator.h"

extern "C" {

// Forgets all tensors, and sets the seed for junk, poison and the order of cores.
void ascendc_host_begin(uint64_t seed) {
  auto& device = ascendc_host::Device::OfThisThread();
  device.ClearRegions();
  device.SetSeed(seed);
}

// Lets the following launches of this thread touch `bytes` bytes at `address`.
void ascendc_host_tensor(const char* name, const void* address, uint64_t bytes, int32_t writable) {
  ascendc_host::Device::OfThisThread().AddRegion(name, address, bytes, writable != 0);
}

// Problems of the last launch of this thread.
int64_t ascendc_host_problems() {
  return static_cast<int64_t>(ascendc_host::Device::OfThisThread().report().problems.size());
}

// The last launch of this thread as JSON; valid until the next call on this thread.
const char* ascendc_host_report() {
  static thread_local std::string text;
  text = ascendc_host::Json(ascendc_host::Device::OfThisThread().report());
  return text.c_str();
}

}  // extern "C"
