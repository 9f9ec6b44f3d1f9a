// SPDX-License-Identifier: Apache-2.0
#include "pool_memory.h"

#include <iterator>

namespace emulated_npu {

namespace {

constexpr size_t kMiB = 1 << 20;
constexpr size_t kLargestSmallRequest = kMiB;
constexpr size_t kSmallSegment = 2 * kMiB;
constexpr size_t kLargeSegment = 20 * kMiB;
constexpr size_t kOwnSegment = 10 * kMiB;  // from here on a request has a segment of its own size
constexpr size_t kSegmentGranularity = 2 * kMiB;

}  // namespace

bool is_small_request(size_t bytes) {
  return bytes <= kLargestSmallRequest;
}

size_t segment_bytes(size_t bytes) {
  if (is_small_request(bytes)) {
    return kSmallSegment;
  }
  if (bytes < kOwnSegment) {
    return kLargeSegment;
  }
  return (bytes + kSegmentGranularity - 1) / kSegmentGranularity * kSegmentGranularity;
}

void PoolMemory::add_segment(Range segment) {
  segments_.insert(segment.data);
  insert(segment);
}

Range PoolMemory::take(size_t bytes) {
  const auto found = by_size_.lower_bound({bytes, nullptr});
  if (found == by_size_.end()) {
    return {};
  }
  const Range range{found->second, found->first};
  erase(range);
  const size_t rest = range.size - bytes;
  // Among large ranges, a rest that only small requests could use is not split off.
  if (rest == 0 || (!is_small_request(bytes) && rest <= kLargestSmallRequest)) {
    return range;
  }
  insert({range.data + bytes, rest});
  return {range.data, bytes};
}

void PoolMemory::give_back(Range range) {
  const auto next = by_address_.find(range.data + range.size);
  if (next != by_address_.end() && segments_.count(next->first) == 0) {
    const Range behind{next->first, next->second};
    erase(behind);
    range.size += behind.size;
  }
  const auto here = by_address_.lower_bound(range.data);
  if (here != by_address_.begin() && segments_.count(range.data) == 0) {
    const auto [data, size] = *std::prev(here);
    if (data + size == range.data) {
      erase({data, size});
      range = {data, size + range.size};
    }
  }
  insert(range);
}

void PoolMemory::insert(Range range) {
  by_size_.emplace(range.size, range.data);
  by_address_.emplace(range.data, range.size);
}

void PoolMemory::erase(Range range) {
  by_size_.erase({range.size, range.data});
  by_address_.erase(range.data);
}

}  // namespace emulated_npu
