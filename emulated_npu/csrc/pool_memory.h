// SPDX-License-Identifier: Apache-2.0
// How a pool of graphs divides its memory.
//
// Source: torch_npu's caching allocator (the description and the sizes in NPUCachingAllocator.cpp;
// PyTorch has the same in c10/core/AllocatorConfig.h). Memory comes in segments. The smallest free
// range that is large enough serves a request, and is split; free neighbours become one range. So a
// graph that is captured after one for more tokens lies in the memory of that one.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <utility>

namespace emulated_npu {

// Small requests never share a segment with large ones.
bool is_small_request(size_t bytes);

// Bytes of a new segment for a request of `bytes`.
size_t segment_bytes(size_t bytes);

struct Range {
  char* data = nullptr;
  size_t size = 0;
};

// The free ranges of segments, either for small requests or for large ones.
class PoolMemory {
 public:
  void add_segment(Range segment);

  // A range for a request of `bytes`; without data when no free range is large enough.
  Range take(size_t bytes);

  // Takes back what take() returned.
  void give_back(Range range);

 private:
  void insert(Range range);
  void erase(Range range);

  std::set<std::pair<size_t, char*>> by_size_;
  std::map<char*, size_t> by_address_;
  std::set<char*> segments_;  // where each begins; ranges never grow over that
};

}  // namespace emulated_npu
