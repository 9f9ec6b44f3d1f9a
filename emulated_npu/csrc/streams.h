// SPDX-License-Identifier: Apache-2.0
// Streams and events. Work is done in program order when it is called, so a stream is only a name:
// streams have distinct ids and each thread has a current one per device, but nothing waits.
#pragma once

#include <c10/core/Stream.h>

namespace emulated_npu {

c10::Stream default_stream(c10::DeviceIndex device);

// A stream with an id that no other stream of this process has.
c10::Stream new_stream(c10::DeviceIndex device);

c10::Stream current_stream(c10::DeviceIndex device);

// Makes `stream` current on its device for this thread; returns the one that was.
c10::Stream exchange_stream(c10::Stream stream);

}  // namespace emulated_npu
