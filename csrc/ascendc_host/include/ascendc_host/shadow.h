// SPDX-License-Identifier: Apache-2.0
// Who touched which bytes last. A map of disjoint ranges, not an entry per byte: kernels touch
// memory in long runs.
#ifndef MKV_ASCENDC_HOST_SHADOW_H_
#define MKV_ASCENDC_HOST_SHADOW_H_

#include <cstdint>
#include <map>

#include "records.h"

namespace ascendc_host {

// A moment of one pipe of one core: its tick-th instruction. Tick 0 means never.
struct Access {
  uint32_t tick = 0;
  const char* name = "";
  Where where;
};

struct Touched {
  Access write;
  pipe_t write_pipe = PIPE_S;
  int64_t write_core = -1;
  Access reads[kPipes];
  // The core that `reads` belongs to, and whether another core read the bytes before it.
  int64_t read_core = -1;
  bool read_by_several = false;
};

class Shadow {
 public:
  void Clear() {
    ranges_.clear();
  }

  // Calls visit(touched, begin, end) for each known range that shares a byte with [begin, end).
  template <typename Visit>
  void ForEach(uint64_t begin, uint64_t end, Visit visit) const {
    for (auto at = FirstOver(begin); at != ranges_.end() && at->first < end; ++at) {
      visit(at->second.touched, at->first, at->second.end);
    }
  }

  void MarkWrite(uint64_t begin, uint64_t end, const Access& access, pipe_t pipe, int64_t core) {
    Split(begin);
    Split(end);
    ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
    Range range;
    range.end = end;
    range.touched.write = access;
    range.touched.write_pipe = pipe;
    range.touched.write_core = core;
    ranges_.emplace(begin, range);
  }

  void MarkRead(uint64_t begin, uint64_t end, const Access& access, pipe_t pipe, int64_t core) {
    Split(begin);
    Split(end);
    uint64_t at = begin;
    auto next = ranges_.lower_bound(begin);
    while (at < end) {
      if (next == ranges_.end() || next->first > at) {
        Range gap;
        gap.end = next == ranges_.end() || next->first > end ? end : next->first;
        next = ranges_.emplace_hint(next, at, gap);
      }
      AddRead(next->second.touched, access, pipe, core);
      at = next->second.end;
      ++next;
    }
  }

 private:
  struct Range {
    uint64_t end = 0;
    Touched touched;
  };
  using Ranges = std::map<uint64_t, Range>;

  static void AddRead(Touched& touched, const Access& access, pipe_t pipe, int64_t core) {
    if (touched.read_core != core) {
      touched.read_by_several |= touched.read_core >= 0;
      for (auto& read : touched.reads) {
        read = Access();
      }
      touched.read_core = core;
    }
    touched.reads[pipe] = access;
  }

  Ranges::const_iterator FirstOver(uint64_t begin) const {
    auto at = ranges_.upper_bound(begin);
    if (at != ranges_.begin()) {
      auto before = std::prev(at);
      if (before->second.end > begin) {
        return before;
      }
    }
    return at;
  }

  // Makes `at` a border between ranges.
  void Split(uint64_t at) {
    auto next = ranges_.upper_bound(at);
    if (next == ranges_.begin()) {
      return;
    }
    auto range = std::prev(next);
    if (range->first == at || range->second.end <= at) {
      return;
    }
    Range rest = range->second;
    range->second.end = at;
    ranges_.emplace_hint(next, at, rest);
  }

  Ranges ranges_;
};

}  // namespace ascendc_host

#endif  // MKV_ASCENDC_HOST_SHADOW_H_
