// SPDX-License-Identifier: Apache-2.0
// The data cache that the scalar unit of a core reads and writes global memory through: lines of 64
// bytes, which follow neither copies nor other cores. A bit stands for a byte of a line.
//
// A launch may find anything in it. CANN's compiler empties it before a kernel ends: it cleans and
// invalidates, with --cce-no-dcache-flush it only invalidates. But a kernel of somebody else may be
// built without either (-cce-aicore-dcci-before-kernel-end=false). Within a kernel nothing is
// inserted (-cce-aicore-dcci-insert-for-scalar=false in CANN's own build).
#ifndef MKV_ASCENDC_HOST_DATA_CACHE_H_
#define MKV_ASCENDC_HOST_DATA_CACHE_H_

#include <algorithm>
#include <cstdint>
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
  uint64_t fresh = 0;   // invalidated by this kernel
  uint64_t copied = 0;  // written by a copy of this kernel, and not invalidated since
  uint64_t dirty = 0;   // written by the scalar unit, and not cleaned since
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
    auto& state = At(line);
    const uint64_t rest = BytesOfLine(line, at, kCacheLineBytes);
    state.fresh |= rest;
    state.copied &= ~rest;
    state.dirty &= ~rest;
    state.loaded = state.loaded && at % kCacheLineBytes != 0;
  }
  void InvalidateAll() {
    lines_.clear();
    emptied_ = true;
  }
  // Whether nothing of these bytes of a line can be left from an earlier kernel.
  bool Fresh(uint64_t line, uint64_t bytes) {
    return emptied_ || (At(line).fresh & bytes) == bytes;
  }

 private:
  std::unordered_map<uint64_t, CacheLineState> lines_;
  bool emptied_ = false;
};

}  // namespace ascendc_host

#endif  // MKV_ASCENDC_HOST_DATA_CACHE_H_
