// SPDX-License-Identifier: Apache-2.0
// The op that zeroes blocks of caches.
#include "kernels.h"

#include <cstring>

namespace mkv::ops {

void zero_blocks(const std::vector<Pages>& caches, Indices block_ids, int64_t num_ids) {
  for (const Pages& cache : caches) {
    for (int64_t place = 0; place < num_ids; ++place) {
      const int64_t block = block_ids[place];
      if (block >= 0 && block < cache.num_blocks) {
        std::memset(cache.start + block * cache.stride, 0, static_cast<size_t>(cache.bytes));
      }
    }
  }
}

}  // namespace mkv::ops
