// SPDX-License-Identifier: Apache-2.0
// One vector core: its unified buffer, its four pipes and what each knows of the others.
//
// A kernel runs on the host in program order. What the NPU may do in another order is found with
// vector clocks: known_[p][q] is the last instruction of pipe q that is surely complete before the
// next one of pipe p. Knowledge comes from SetFlag with its WaitFlag, from queues (which set and
// wait for flags) and from PipeBarrier, and from nothing else. In particular a pipe does not know
// its own earlier instructions to be complete without a barrier (the scalar pipe does), and that
// the scalar unit waited before it issued an instruction does not count: that is how the
// documentation puts it with automatic synchronisation off.
#ifndef MKV_ASCENDC_HOST_CORE_H_
#define MKV_ASCENDC_HOST_CORE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "data_cache.h"
#include "device.h"

namespace ascendc_host {

// Part of the unified buffer that InitBuffer gave out, as offsets.
struct Buffer {
  uint32_t begin = 0;
  uint32_t end = 0;
  AscendC::TPosition position = AscendC::TPosition::VECCALC;
  std::string name;
};

struct Clock {
  uint32_t ticks[kPipes] = {};
};

class Core {
 public:
  Core(Device& device, int64_t index, int64_t count)
      : device_(device),
        index_(index),
        count_(count),
        random_(device.seed() * 1000003 + static_cast<uint64_t>(index)),
        ub_(kUbBytes),
        undefined_(kUbBytes, 1) {
    counters_.core = index;
  }

  static Core*& Current() {
    static thread_local Core* current = nullptr;
    return current;
  }

  static Core& OfThisThread() {
    if (Current() == nullptr) {
      throw std::logic_error("AscendC was called outside a launch (MKV_LAUNCH)");
    }
    return *Current();
  }

  // Problems.
  void Add(
      const char* kind, const std::string& message, Where where, const std::string& buffer = "",
      const std::string& pipe = "") {
    Problem problem;
    problem.kind = kind;
    problem.core = index_;
    problem.pipe = pipe;
    problem.buffer = buffer;
    problem.where = where;
    problem.message = message;
    device_.Add(std::move(problem));
  }
  [[noreturn]] void Fail(
      const char* kind, const std::string& message, Where where, const std::string& buffer = "",
      const std::string& pipe = "") {
    Add(kind, message, where, buffer, pipe);
    throw Stop();
  }

  // Pipes.
  uint32_t Issue(pipe_t pipe) {
    ++counters_.instructions[pipe];
    return ++issued_[pipe];
  }
  bool Knows(pipe_t pipe, pipe_t other, uint32_t tick) const {
    return (pipe == PIPE_S && other == PIPE_S) || tick <= known_[pipe].ticks[other];
  }
  void Barrier(pipe_t pipe) {
    ++counters_.barriers;
    if (pipe != PIPE_ALL) {
      known_[pipe].ticks[pipe] = issued_[pipe];
      return;
    }
    for (auto& clock : known_) {
      std::copy(issued_, issued_ + kPipes, clock.ticks);
    }
  }
  void SetFlag(AscendC::HardEvent event, int32_t id, Where where) {
    auto& flag = FlagOf(event, id, where);
    if (flag.set) {
      Fail(
          "flag_set_twice",
          "SetFlag of " + EventName(event, id) + " before the WaitFlag for the one set at " +
              Text(flag.where),
          where);
    }
    const pipe_t source = Source(event);
    ++counters_.flags;
    flag.set = true;
    flag.where = where;
    flag.clock = known_[source];
    flag.clock.ticks[source] = issued_[source];
  }
  void WaitFlag(AscendC::HardEvent event, int32_t id, Where where) {
    auto& flag = FlagOf(event, id, where);
    if (!flag.set) {
      Fail(
          "flag_not_set",
          "WaitFlag for " + EventName(event, id) + ", which nothing set: the core would hang",
          where);
    }
    flag.set = false;
    auto& known = known_[Destination(event)];
    for (int pipe = 0; pipe < kPipes; ++pipe) {
      known.ticks[pipe] = std::max(known.ticks[pipe], flag.clock.ticks[pipe]);
    }
  }
  int8_t FreeEvent(AscendC::HardEvent event, Where where) {
    for (int8_t id = 0; id < kEventIds; ++id) {
      if (!flags_[static_cast<int>(event)][id].occupied) {
        return id;
      }
    }
    Fail(
        "event_ids",
        "all 8 event ids of " + EventName(event) + " are held by queues and AllocEventID", where);
  }
  int8_t AllocEvent(AscendC::HardEvent event, Where where) {
    const int8_t id = FreeEvent(event, where);
    flags_[static_cast<int>(event)][id].occupied = true;
    flags_[static_cast<int>(event)][id].where_occupied = where;
    return id;
  }
  void ReleaseEvent(AscendC::HardEvent event, int32_t id, Where where) {
    auto& flag = FlagOf(event, id, where);
    if (!flag.occupied) {
      Fail("event_ids", "release of " + EventName(event, id) + ", which is not held", where);
    }
    flag.occupied = false;
  }

  // The end of the kernel on this core.
  void Finish() {
    for (int event = 0; event < kEvents; ++event) {
      for (int id = 0; id < kEventIds; ++id) {
        const auto& flag = flags_[event][id];
        const auto name = EventName(static_cast<AscendC::HardEvent>(event), id);
        if (flag.set) {
          Add("flag_unpaired", "SetFlag of " + name + " has no WaitFlag", flag.where);
        }
        if (flag.occupied) {
          Add("event_ids", "AllocEventID of " + name + " has no ReleaseEventID",
              flag.where_occupied);
        }
      }
    }
    for (const auto& line : cache_.lines()) {
      if (line.second.dirty != 0) {
        Add("cache", "GlobalTensor::SetValue without DataCacheCleanAndInvalid after it",
            line.second.dirty_where);
      }
    }
  }

  // Buffers. The bytes are poisoned: what an earlier kernel left there is not known.
  uint32_t AddBuffer(const Buffer& buffer) {
    for (uint32_t at = buffer.begin; at < buffer.end; ++at) {
      ub_[at] = static_cast<uint8_t>(random_.Next());
    }
    std::fill(undefined_.begin() + buffer.begin, undefined_.begin() + buffer.end, uint8_t{1});
    buffers_.push_back(buffer);
    counters_.ub_bytes = std::max<int64_t>(counters_.ub_bytes, buffer.end);
    return static_cast<uint32_t>(buffers_.size() - 1);
  }
  const Buffer& buffer(uint32_t index) const {
    return buffers_[index];
  }
  uint32_t buffer_count() const {
    return static_cast<uint32_t>(buffers_.size());
  }

  uint8_t* ub(uint32_t at) {
    return ub_.data() + at;
  }
  uint8_t* undefined(uint32_t at) {
    return undefined_.data() + at;
  }
  Random& random() {
    return random_;
  }
  Counters& counters() {
    return counters_;
  }
  Device& device() {
    return device_;
  }
  Shadow& shadow() {
    return shadow_;
  }
  int64_t index() const {
    return index_;
  }
  int64_t count() const {
    return count_;
  }

  DataCache& cache() {
    return cache_;
  }

  void* pipe_object = nullptr;  // the TPipe that lives, if any

  static std::string EventName(AscendC::HardEvent event) {
    return std::string(Name(Source(event))) + "_" + Name(Destination(event));
  }
  static std::string EventName(AscendC::HardEvent event, int32_t id) {
    return EventName(event) + " " + std::to_string(id);
  }

 private:
  struct Flag {
    bool set = false;
    bool occupied = false;
    Clock clock;
    Where where;
    Where where_occupied;
  };

  Flag& FlagOf(AscendC::HardEvent event, int32_t id, Where where) {
    if (id < 0 || id >= kEventIds) {
      Fail(
          "event_ids",
          "event id " + std::to_string(id) + " of " + EventName(event) + "; there are 0 to 7",
          where);
    }
    return flags_[static_cast<int>(event)][id];
  }

  Device& device_;
  int64_t index_;
  int64_t count_;
  Random random_;
  std::vector<uint8_t> ub_;
  std::vector<uint8_t> undefined_;  // 1 for bytes that hold junk
  std::vector<Buffer> buffers_;
  Shadow shadow_;
  Counters counters_;
  uint32_t issued_[kPipes] = {};
  Clock known_[kPipes];
  Flag flags_[kEvents][kEventIds];
  DataCache cache_;
};

}  // namespace ascendc_host

#endif  // MKV_ASCENDC_HOST_CORE_H_
