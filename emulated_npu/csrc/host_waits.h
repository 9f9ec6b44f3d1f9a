// SPDX-License-Identifier: Apache-2.0
// When the host waits for the device, or asks it: for what is recorded there is nothing to wait.
//
// While a stream waits for an event (a tail, recording.h), the host waits with it where another
// thread of the host will record the event. Python knows: it runs graphs. Else a wait throws.
#pragma once

#include "recording.h"

#include <c10/core/Device.h>

#include <cstdint>
#include <string>

namespace emulated_npu {

// Throws a wait of the host for what is never to come: `what` waits for `tape`.
[[noreturn]] void refuse_wait(const Tape& tape, const std::string& what);

// Returns when the host need not wait any more; throws when it may not.
void wait_for_stream(const StreamKey& stream);
void wait_for_device(c10::DeviceIndex device);
void wait_for_event(int64_t tape);  // recorded while its stream recorded on that tape

// Waits for this thread's current stream. `what` needs a value of the device. A stream can wait
// anew once this returned.
void wait_for_host_read(const std::string& what);

// Whether there is nothing left to wait for; throws where the host may not ask.
bool event_has_come(int64_t tape);
bool stream_is_idle(const StreamKey& stream);

// Waits until a tail has run; 0 when no thread would ever let it.
using WaitCallback = int32_t (*)(int64_t tape);

}  // namespace emulated_npu

extern "C" __attribute__((visibility("default"))) void emulated_npu_set_wait_callback(
    emulated_npu::WaitCallback callback);
