// SPDX-License-Identifier: Apache-2.0
#include "recording.h"

#include "aliasing.h"
#include "blocks.h"
#include "counters.h"
#include "device_state.h"
#include "host_waits.h"
#include "pinned_memory.h"
#include "streams.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <sstream>

namespace emulated_npu {

namespace {

struct Tapes {
  std::mutex mutex;
  std::map<int64_t, TapePointer> by_id;
  std::map<StreamKey, TapePointer> by_stream;
  int64_t last_id = 0;
};

Tapes& tapes() {
  static auto* instance = new Tapes();
  return *instance;
}

// Streams that record: eager launches look at this only.
std::atomic<int> recording_streams{0};

// Tails that did not run to their end: host waits look at this first.
std::atomic<int> tails{0};

std::atomic<PlaceCallback> place_callback{nullptr};

std::string description(const at::Tensor& tensor) {
  std::ostringstream text;
  text << tensor.dtype().name() << " of shape " << tensor.sizes() << " at " << tensor.data_ptr();
  return text.str();
}

void check_operands(const Record& record) {
  for (const auto& tensor : record.operands) {
    TORCH_CHECK(
        !is_freed_block(tensor.storage()), "emulated NPU: graph replay: ", record.name,
        " (captured at ", record.place,
        ") uses a tensor that was freed since the capture: ", description(tensor),
        ". A graph keeps addresses, not tensors. Keep the captured tensor alive and copy each "
        "step's values into it.");
  }
  for (const auto& operand : record.pinned) {
    TORCH_CHECK(
        pinned_serial(operand.address) == operand.serial,
        "emulated NPU: graph replay: ", record.name, " (captured at ", record.place,
        ") uses pinned host memory at ", operand.address,
        " that was freed since the capture. Keep it alive.");
  }
}

void merge(Progress& known, const Progress& more) {
  for (const auto& [stream, done] : more) {
    auto& mine = known[stream];
    mine = std::max(mine, done);
  }
}

}  // namespace

at::Tensor Tape::kept(const at::Tensor& tensor) const {
  return kind == RecordingKind::kTail ? tensor : weak_reference(tensor);
}

void Tape::add(Record record) {
  if (record.place.empty()) {
    record.place = calling_place();
  }
  if (kind == RecordingKind::kCapture) {
    ++lanes[current_stream_key()].done;
  }
  // What is launched on a waiting stream is the program's launch, as on any other; Python counts
  // its own.
  if (kind == RecordingKind::kTail && record.run) {
    record_launch(record.name);
  }
  records.push_back(std::move(record));
}

StreamKey key_of(const c10::Stream& stream) {
  return {resolve_index(stream.device_index()), stream.id()};
}

StreamKey current_stream_key() {
  return key_of(current_stream(-1));
}

TapePointer tape_of(const StreamKey& stream) {
  if (recording_streams.load() == 0) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(tapes().mutex);
  const auto found = tapes().by_stream.find(stream);
  return found == tapes().by_stream.end() ? nullptr : found->second;
}

TapePointer current_tape() {
  return recording_streams.load() == 0 ? nullptr : tape_of(current_stream_key());
}

TapePointer find_tape(int64_t id) {
  std::lock_guard<std::mutex> lock(tapes().mutex);
  const auto found = tapes().by_id.find(id);
  TORCH_CHECK(found != tapes().by_id.end(), "the emulated NPU has no tape ", id);
  return found->second;
}

TapePointer unfinished_tape(int64_t id) {
  std::lock_guard<std::mutex> lock(tapes().mutex);
  const auto found = tapes().by_id.find(id);
  if (found == tapes().by_id.end()) {
    return nullptr;
  }
  // A tail lives until it has run, though another one may be attached to its stream by then.
  const bool attached = std::any_of(
      tapes().by_stream.begin(), tapes().by_stream.end(),
      [id](const auto& entry) { return entry.second->id == id; });
  return attached || found->second->kind == RecordingKind::kTail ? found->second : nullptr;
}

TapePointer capture_on(c10::DeviceIndex device) {
  if (recording_streams.load() == 0) {
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(tapes().mutex);
  for (const auto& [stream, tape] : tapes().by_stream) {
    if (stream.first == device && tape->kind != RecordingKind::kTail) {
      return tape;
    }
  }
  return nullptr;
}

std::map<StreamKey, TapePointer> tails_on(c10::DeviceIndex device) {
  std::map<StreamKey, TapePointer> last;
  if (tails.load() == 0) {
    return last;
  }
  std::lock_guard<std::mutex> lock(tapes().mutex);
  for (const auto& [id, tape] : tapes().by_id) {
    // One that is attached to no stream is the wait for an event itself.
    const bool is_tail = tape->kind == RecordingKind::kTail && !tape->lanes.empty();
    if (is_tail && tape->origin.first == device) {
      last[tape->origin] = tape;
    }
  }
  return last;
}

TapePointer new_tape(RecordingKind kind, int64_t pool, std::string waits_for) {
  auto tape = std::make_shared<Tape>();
  tape->kind = kind;
  tape->pool = pool;
  tape->waits_for = std::move(waits_for);
  if (pool != 0) {
    open_pool(pool);
  }
  std::lock_guard<std::mutex> lock(tapes().mutex);
  tape->id = ++tapes().last_id;
  tapes().by_id.emplace(tape->id, tape);
  tails += kind == RecordingKind::kTail ? 1 : 0;
  return tape;
}

void delete_tape(int64_t id) {
  TapePointer tape;
  {
    std::lock_guard<std::mutex> lock(tapes().mutex);
    const auto found = tapes().by_id.find(id);
    if (found == tapes().by_id.end()) {
      return;
    }
    tape = found->second;
    tapes().by_id.erase(found);
    tails -= tape->kind == RecordingKind::kTail ? 1 : 0;
  }
  tape->records.clear();
  if (tape->pool != 0) {
    close_pool(tape->pool);
  }
}

void attach_tape(const TapePointer& tape, const StreamKey& stream) {
  std::lock_guard<std::mutex> lock(tapes().mutex);
  const bool added = tapes().by_stream.emplace(stream, tape).second;
  TORCH_CHECK(
      added, "emulated NPU: stream ", stream.second, " of npu:", static_cast<int>(stream.first),
      " records already");
  ++recording_streams;
  if (tape->lanes.empty()) {
    tape->origin = stream;
  }
  tape->lanes[stream].done = 1;
}

void detach_stream(const StreamKey& stream) {
  std::lock_guard<std::mutex> lock(tapes().mutex);
  if (tapes().by_stream.erase(stream) > 0) {
    --recording_streams;
  }
}

Progress progress_of(const Tape& tape, const StreamKey& stream) {
  const auto lane = tape.lanes.find(stream);
  if (lane == tape.lanes.end()) {
    return {};
  }
  auto progress = lane->second.known;
  progress[stream] = lane->second.done;
  return progress;
}

void wait_for_progress(const TapePointer& tape, const Progress& progress, const StreamKey& stream) {
  const auto own = tape_of(stream);
  if (tape->kind == RecordingKind::kTail) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        own != nullptr && own->kind == RecordingKind::kTail && own->origin == tape->origin,
        "emulated NPU: stream ", stream.second, " (at ", calling_place(),
        ") waits for a stream that itself waits for ", tape->waits_for,
        "; that is not emulated. Update the graph's tasks and record their events first.");
    return;
  }
  if (own == nullptr) {
    attach_tape(tape, stream);
    tape->lanes[stream].joined_at = calling_place();
  } else if (own->id != tape->id) {
    refuse_wait(*own, "a wait for an event of another capture");
  }
  merge(tape->lanes[stream].known, progress);
}

void end_recording(const Tape& tape) {
  for (const auto& entry : tape.lanes) {
    detach_stream(entry.first);
  }
  poison_blocks_of(tape.id);
}

void check_joined(const Tape& tape) {
  const auto& known = tape.lanes.at(tape.origin).known;
  for (const auto& [stream, lane] : tape.lanes) {
    const auto seen = known.find(stream);
    TORCH_CHECK(
        stream == tape.origin || (seen != known.end() && seen->second >= lane.done),
        "emulated NPU: graph capture ended with unjoined work: stream ", stream.second,
        " joined the capture at ", lane.joined_at,
        ", and the capturing stream does not wait for the end of its work. Let it wait "
        "(wait_stream, or an event recorded after the last launch).");
  }
}

int64_t run_tape(Tape& tape, int64_t first) {
  const auto count = static_cast<int64_t>(tape.records.size());
  for (int64_t index = first; index < count; ++index) {
    const auto& record = tape.records[index];
    check_operands(record);
    if (!record.run) {
      return index;
    }
    if (tape.kind != RecordingKind::kTail) {
      record_graph_launch(record.name);
    }
    try {
      record.run();
    } catch (c10::Error& error) {
      error.add_context(c10::str("in ", record.name, ", captured at ", record.place));
      throw;
    }
  }
  return count;
}

void replace_records(Tape& tape, int64_t first, int64_t count, Tape& update) {
  const auto have = static_cast<int64_t>(update.records.size());
  TORCH_CHECK(
      have == count, "emulated NPU: task update with ", have,
      " launches of a task group that was captured with ", count,
      count > 0 ? " (at " + tape.records[first].place + ")" : "",
      ". An update launches the same operators in the same order.");
  for (int64_t index = 0; index < count; ++index) {
    const auto& now = tape.records[first + index];
    TORCH_CHECK(
        now.name == update.records[index].name, "emulated NPU: task update with ",
        update.records[index].name, " (at ", update.records[index].place,
        ") of a task that was captured as ", now.name, " (at ", now.place,
        "). An update launches the same operators in the same order.");
  }
  for (int64_t index = 0; index < count; ++index) {
    // Where the graph was captured says more about a task than where it was updated.
    update.records[index].place = tape.records[first + index].place;
    tape.records[first + index] = std::move(update.records[index]);
  }
}

std::string calling_place() {
  std::array<char, 512> text{};
  if (auto callback = place_callback.load()) {
    callback(text.data(), static_cast<int64_t>(text.size()));
  }
  text.back() = '\0';
  return text.data();
}

}  // namespace emulated_npu

void emulated_npu_set_place_callback(emulated_npu::PlaceCallback callback) {
  emulated_npu::place_callback.store(callback);
}
