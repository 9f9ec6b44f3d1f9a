// SPDX-License-Identifier: Apache-2.0
// Recording instead of running: what a stream does while a graph is captured on it.
//
// A tape is a list of launches. A stream to which a tape is attached records its launches there:
//   - capture: into a graph, whose memory comes from a pool;
//   - update: in place of launches that a graph holds already;
//   - tail: of a stream that waits for an event, to be run once when the event comes.
// Recording runs a kernel only to learn the shapes of its results, and never on memory that was
// there before: see scratch_storage in aliasing.h.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace emulated_npu {

enum class RecordingKind : int64_t { kCapture = 1, kUpdate = 2, kTail = 3 };

// Host memory that a launch reads or writes each time it runs.
struct PinnedOperand {
  const void* address;
  uint64_t serial;  // of the allocation: another one may get the same address
};

struct Record {
  std::string name;
  std::string place;                 // file:line of the program that launched it
  std::vector<at::Tensor> operands;  // not owning, but in a tail
  std::vector<PinnedOperand> pinned;
  std::function<void()> run;  // empty: Python runs it
};

using StreamKey = std::pair<c10::DeviceIndex, c10::StreamId>;

// For each stream, how many of its records happen before a point of the program.
using Progress = std::map<StreamKey, int64_t>;

// A stream that takes part in a capture.
struct Lane {
  Progress known;
  int64_t done = 0;
  std::string joined_at;
};

struct Tape {
  int64_t id = 0;
  RecordingKind kind = RecordingKind::kCapture;
  int64_t pool = 0;
  std::string waits_for;  // of a tail: what its stream waits for
  std::vector<Record> records;
  StreamKey origin;
  std::map<StreamKey, Lane> lanes;

  // `tensor` as a record keeps it: its address only. What is launched on a waiting stream may use
  // memory that the program frees at once, so a tail keeps the tensor itself.
  at::Tensor kept(const at::Tensor& tensor) const;

  void add(Record record);
};

using TapePointer = std::shared_ptr<Tape>;

// The tape of this thread's current stream, or of the given one; null when it runs its launches.
TapePointer current_tape();
TapePointer tape_of(const StreamKey& stream);
TapePointer find_tape(int64_t id);  // throws when there is none

// The tape of this id, unless its streams run their launches again and, of a tail, all its own ran.
TapePointer unfinished_tape(int64_t id);

// A capture or an update that a stream of the device takes part in; null when there is none.
TapePointer capture_on(c10::DeviceIndex device);

// For each stream of the device with launches that wait, the last tail of them.
std::map<StreamKey, TapePointer> tails_on(c10::DeviceIndex device);

TapePointer new_tape(RecordingKind kind, int64_t pool, std::string waits_for);
void delete_tape(int64_t id);
void attach_tape(const TapePointer& tape, const StreamKey& stream);
void detach_stream(const StreamKey& stream);

// What of a capture happens before the end of what `stream` launched so far.
Progress progress_of(const Tape& tape, const StreamKey& stream);

// Lets `stream` wait for work of a recording stream: it joins the capture.
void wait_for_progress(const TapePointer& tape, const Progress& progress, const StreamKey& stream);

// Detaches a capture from all its streams; what it computed is gone.
void end_recording(const Tape& tape);

// Throws when a stream that took part in a capture was not joined back to the first.
void check_joined(const Tape& tape);

// Runs records from `first` on, up to one that Python runs, whose index is returned, or to the end.
int64_t run_tape(Tape& tape, int64_t first);

// Puts the launches of `update` in the place of `count` launches. Throws when they do not match.
void replace_records(Tape& tape, int64_t first, int64_t count, Tape& update);

StreamKey current_stream_key();
StreamKey key_of(const c10::Stream& stream);

// Where in the program the device was called; Python tells.
std::string calling_place();
using PlaceCallback = void (*)(char* text, int64_t capacity);

}  // namespace emulated_npu

extern "C" __attribute__((visibility("default"))) void emulated_npu_set_place_callback(
    emulated_npu::PlaceCallback callback);
