// SPDX-License-Identifier: Apache-2.0
// What every part of the emulated device shares: its device type and the settings of this process.
#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

#include <cstdint>

namespace emulated_npu {

// PyTorch's slot for a backend outside its own tree; Python renames it to "npu".
constexpr c10::DeviceType kDeviceType = c10::DeviceType::PrivateUse1;

// Upper bound of the device count, so that per-device state can stand in fixed arrays.
constexpr int kMaxDevices = 64;

// Fills memory whose content nobody may rely on: NaN, and -1 as an integer.
constexpr int kPoison = 0xFF;
constexpr int kLeaveAsItIs = -1;

// The fills are bytes for memory that nothing was written to yet: what is handed out, and what was
// handed out in a capture, when that ends.
struct Settings {
  int device_count = 1;
  int64_t memory_bytes = 0;  // limit of one device
  bool strict = false;       // refuse operands on mixed devices
  int fresh_fill = kLeaveAsItIs;
  int captured_fill = kPoison;
};

// Written once by initialize(), before any tensor of the device exists.
Settings& settings();

// The current device of the calling thread, as on CUDA: a new thread starts on device 0.
c10::DeviceIndex current_device();

// Throws with the number of devices when `index` is not one of them.
void set_current_device(c10::DeviceIndex index);

// `index`, or the current device of this thread when `index` is negative ("npu" without a number).
inline c10::DeviceIndex resolve_index(c10::DeviceIndex index) {
  return index < 0 ? current_device() : index;
}

inline c10::Device npu(c10::DeviceIndex index) {
  return c10::Device(kDeviceType, resolve_index(index));
}

}  // namespace emulated_npu
