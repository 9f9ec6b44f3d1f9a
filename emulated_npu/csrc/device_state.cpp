// SPDX-License-Identifier: Apache-2.0
#include "device_state.h"

namespace emulated_npu {

namespace {
thread_local c10::DeviceIndex this_thread_device = 0;
}  // namespace

Settings& settings() {
  static Settings instance;
  return instance;
}

c10::DeviceIndex current_device() {
  return this_thread_device;
}

void set_current_device(c10::DeviceIndex index) {
  const int count = settings().device_count;
  TORCH_CHECK(
      index >= 0 && index < count, "invalid device npu:", static_cast<int>(index),
      ": the emulated machine has ", count, " device(s), npu:0 to npu:", count - 1,
      ". Use one of them, or raise the number of emulated devices (EMULATED_NPU_DEVICES).");
  this_thread_device = index;
}

}  // namespace emulated_npu
