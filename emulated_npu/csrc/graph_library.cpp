// SPDX-License-Identifier: Apache-2.0
// What Python asks of tapes (recording.h): it decides what a graph is, records and replays.
#include "aliasing.h"
#include "blocks.h"
#include "host_waits.h"
#include "recording.h"

#include <torch/library.h>

namespace emulated_npu {

namespace {

StreamKey key(int64_t device, int64_t stream) {
  return {static_cast<c10::DeviceIndex>(device), stream};
}

int64_t make_tape(int64_t kind, int64_t pool, std::string waits_for) {
  return new_tape(static_cast<RecordingKind>(kind), pool, std::move(waits_for))->id;
}

void attach(int64_t tape, int64_t device, int64_t stream) {
  attach_tape(find_tape(tape), key(device, stream));
}

void detach(int64_t device, int64_t stream) {
  detach_stream(key(device, stream));
}

int64_t current() {
  const auto tape = current_tape();
  return tape == nullptr ? 0 : tape->id;
}

int64_t of_stream(int64_t device, int64_t stream) {
  const auto tape = tape_of(key(device, stream));
  return tape == nullptr ? 0 : tape->id;
}

void end(int64_t tape) {
  end_recording(*find_tape(tape));
}

void check_joined_streams(int64_t tape) {
  check_joined(*find_tape(tape));
}

// A launch that Python runs.
int64_t append(int64_t tape, std::string name, const std::vector<at::Tensor>& operands) {
  const auto found = find_tape(tape);
  Record record;
  record.name = std::move(name);
  for (const auto& operand : operands) {
    record.operands.push_back(found->kept(operand));
  }
  found->add(std::move(record));
  return static_cast<int64_t>(found->records.size()) - 1;
}

// An npu tensor as a launch of Python keeps it: a CPU tensor over its memory.
at::Tensor kept_alias(int64_t tape, const at::Tensor& tensor) {
  return cpu_alias(find_tape(tape)->kept(tensor));
}

int64_t size(int64_t tape) {
  return static_cast<int64_t>(find_tape(tape)->records.size());
}

std::string name_of(int64_t tape, int64_t index) {
  return find_tape(tape)->records.at(index).name;
}

std::string place_of(int64_t tape, int64_t index) {
  return find_tape(tape)->records.at(index).place;
}

int64_t run(int64_t tape, int64_t first) {
  return run_tape(*find_tape(tape), first);
}

void replace(int64_t tape, int64_t first, int64_t count, int64_t update) {
  replace_records(*find_tape(tape), first, count, *find_tape(update));
}

void host_read(std::string what) {
  wait_for_host_read(what);
}

// A kernel's result as an npu tensor, and whether it is new memory rather than an operand's.
std::tuple<at::Tensor, bool> recorded_result(const at::Tensor& tensor, int64_t device) {
  if (aliases_npu_memory(tensor)) {
    return {npu_alias(tensor, -1), false};
  }
  return {copy_to_npu(tensor, static_cast<c10::DeviceIndex>(device)), true};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(emulated_npu, library) {
  library.def("tape_new(int kind, int pool, str waits_for) -> int", &make_tape);
  library.def("tape_delete(int tape) -> ()", &delete_tape);
  library.def("tape_attach(int tape, int device, int stream) -> ()", &attach);
  library.def("tape_detach(int device, int stream) -> ()", &detach);
  library.def("tape_end(int tape) -> ()", &end);
  library.def("tape_check_joined(int tape) -> ()", &check_joined_streams);
  library.def("current_tape() -> int", &current);
  library.def("tape_of_stream(int device, int stream) -> int", &of_stream);
  library.def("tape_append(int tape, str name, Tensor[] operands) -> int", &append);
  library.def("tape_size(int tape) -> int", &size);
  library.def("tape_name(int tape, int index) -> str", &name_of);
  library.def("tape_place(int tape, int index) -> str", &place_of);
  library.def("tape_run(int tape, int first) -> int", &run);
  library.def("tape_replace(int tape, int first, int count, int update) -> ()", &replace);
  library.def("tape_kept(int tape, Tensor tensor) -> Tensor", &kept_alias);
  library.def("wait_for_host_read(str what) -> ()", &host_read);
  library.def("weak_reference(Tensor tensor) -> Tensor", &weak_reference);
  library.def("scratch_alias(Tensor tensor) -> Tensor", &scratch_alias);
  library.def("recorded_result(Tensor tensor, int device) -> (Tensor, bool)", &recorded_result);
}

}  // namespace emulated_npu
