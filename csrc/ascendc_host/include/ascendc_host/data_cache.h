// SPDX-License-Identifier: Apache-2.0
// The data cache that the scalar unit of a core reads and writes global memory through: lines of 64
// bytes, which follow neither copies nor other cores. A bit stands for a byte of a line.
//
// A launch begins with an empty cache: CANN's compiler cleans and invalidates it before a kernel
// ends (-cce-aicore-dcci-before-kernel-end, which is on for vector cores of arch 2201 unless
// --cce-no-dcache-flush is given). Within a kernel nothing is inserted
// (-cce-aicore-dcci-insert-for-scalar=false in CANN's own build).
#ifndef MKV_ASCENDC_HOST_DATA_CACHE_H_
#define MKV_ASCENDC_HOST_DATA_CACHE_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <unordered_map>

#include "records.h"

namespace ascendc_host {

// The bytes of a cache line that lie in [at, at + bytes), a bit each.
inline uint64_t BytesOfLine(uint64_t line, uint64_t at, uint64_t bytes) {
  const uint64_t begin = line * kCacheLineBytes;
  const uint64_t from = std::max(begin, at);
  const uint64_t to = std::min(begin + kCacheLineBytes, at + bytes);
  if (from >= to) {
    return 0;
  }
  return ~uint64_t{0} >> (kCacheLineBytes - (to - from)) << (from - begin);
}

// Calls visit(line) for each line that shares a byte with [at, at + bytes).
template <typename Visit>
void ForEachLine(uint64_t at, uint64_t bytes, Visit visit) {
  if (bytes > 0) {
    for (uint64_t line = at / kCacheLineBytes; line <= (at + bytes - 1) / kCacheLineBytes; ++line) {
      visit(line);
    }
  }
}

struct CacheLineState {
  bool loaded = false;
  uint64_t copied = 0;  // written by a copy of this kernel, and not invalidated since
  uint64_t dirty = 0;   // written by the scalar unit, and not cleaned since
  uint64_t held = 0;    // bytes whose value is in `bytes`, of a launch before
  uint8_t bytes[kCacheLineBytes] = {};
  Where copied_where;
  Where dirty_where;
};

class DataCache {
 public:
  CacheLineState& At(uint64_t line) {
    return lines_[line];
  }
  CacheLineState* Find(uint64_t line) {
    const auto found = lines_.find(line);
    return found == lines_.end() ? nullptr : &found->second;
  }
  const std::unordered_map<uint64_t, CacheLineState>& lines() const {
    return lines_;
  }

  // Of DataCacheCleanAndInvalid with SINGLE_CACHE_LINE: from the address to the end of its line.
  void Invalidate(uint64_t at) {
    const uint64_t line = at / kCacheLineBytes;
    auto* state = Find(line);
    if (state == nullptr) {
      return;
    }
    const uint64_t rest = BytesOfLine(line, at, kCacheLineBytes);
    state->copied &= ~rest;
    state->dirty &= ~rest;
    state->held &= ~rest;
    if (at % kCacheLineBytes == 0) {
      lines_.erase(line);
    }
  }
  void InvalidateAll() {
    lines_.clear();
  }

  // Whether memory no longer has what a launch before left of the bytes `read` in a line, where the
  // cache outlives launches. Other bytes of the line may be memory that is there no more.
  static bool Outdated(const CacheLineState& state, uint64_t line, uint64_t read) {
    const uint64_t compared = state.held & read;
    for (uint64_t byte = 0; compared != 0 && byte < kCacheLineBytes; ++byte) {
      const auto* memory = reinterpret_cast<const uint8_t*>(line * kCacheLineBytes + byte);
      if ((compared >> byte & 1) != 0 && *memory != state.bytes[byte]) {
        return true;
      }
    }
    return false;
  }
  // Keeps the bytes of a line that lie in a tensor, for later launches.
  static void Hold(CacheLineState& state, uint64_t line, uint64_t begin, uint64_t end) {
    state.held = BytesOfLine(line, begin, end - begin);
    for (uint64_t byte = 0; byte < kCacheLineBytes; ++byte) {
      if ((state.held >> byte & 1) != 0) {
        state.bytes[byte] = *reinterpret_cast<const uint8_t*>(line * kCacheLineBytes + byte);
      }
    }
  }

 private:
  std::unordered_map<uint64_t, CacheLineState> lines_;
};

}  // namespace ascendc_host

#endif  // MKV_ASCENDC_HOST_DATA_CACHE_H_
