// SPDX-License-Identifier: Apache-2.0
#include "host_waits.h"

#include <atomic>

namespace emulated_npu {

namespace {

std::atomic<WaitCallback> wait_callback{nullptr};

void wait_for_tail(const Tape& tail, const std::string& what) {
  const auto callback = wait_callback.load();
  if (callback == nullptr || callback(tail.id) == 0) {
    refuse_wait(tail, what);
  }
}

void wait_for_tail_of(const StreamKey& stream, const std::string& what) {
  const auto tails = tails_on(stream.first);
  const auto found = tails.find(stream);
  if (found != tails.end()) {
    wait_for_tail(*found->second, what);
  }
}

// A capture and an update allow no wait at all, for whatever it may be.
void refuse_unless_tail(const TapePointer& tape, const std::string& what) {
  if (tape != nullptr && tape->kind != RecordingKind::kTail) {
    refuse_wait(*tape, what);
  }
}

}  // namespace

void refuse_wait(const Tape& tape, const std::string& what) {
  TORCH_CHECK(
      tape.kind != RecordingKind::kTail, "emulated NPU: deadlock: ", what, " (at ", calling_place(),
      ") would wait for ever, because the stream waits for ", tape.waits_for,
      ". Update the graph's tasks and record their events first.");
  TORCH_CHECK(
      false, "emulated NPU: ", what, " (at ", calling_place(), ") ",
      tape.kind == RecordingKind::kCapture ? "during graph capture" : "during a task update",
      ": nothing runs then, so there is nothing to wait for and no value to read. Do it before or "
      "after the capture.");
}

void wait_for_stream(const StreamKey& stream) {
  const std::string what = "synchronisation with a stream";
  refuse_unless_tail(current_tape(), what);
  refuse_unless_tail(tape_of(stream), what);
  wait_for_tail_of(stream, what);
}

void wait_for_device(c10::DeviceIndex device) {
  const std::string what = "synchronisation with the device";
  refuse_unless_tail(capture_on(device), what);
  for (const auto& [stream, tail] : tails_on(device)) {
    wait_for_tail(*tail, what);
  }
}

void wait_for_event(int64_t tape) {
  const std::string what = "synchronisation with an event";
  refuse_unless_tail(current_tape(), what);
  const auto unfinished = unfinished_tape(tape);
  refuse_unless_tail(unfinished, what);
  if (unfinished != nullptr) {
    wait_for_tail(*unfinished, what);
  }
}

void wait_for_host_read(const std::string& what) {
  refuse_unless_tail(current_tape(), what);
  wait_for_tail_of(current_stream_key(), what);
}

bool event_has_come(int64_t tape) {
  refuse_unless_tail(current_tape(), "a question to an event");
  return unfinished_tape(tape) == nullptr;
}

bool stream_is_idle(const StreamKey& stream) {
  refuse_unless_tail(current_tape(), "a question to an event");
  return tape_of(stream) == nullptr && tails_on(stream.first).count(stream) == 0;
}

}  // namespace emulated_npu

void emulated_npu_set_wait_callback(emulated_npu::WaitCallback callback) {
  emulated_npu::wait_callback.store(callback);
}
