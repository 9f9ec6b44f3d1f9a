// SPDX-License-Identifier: Apache-2.0
// The ops that move bytes of caches.
#include "kernels.h"

#include <cstring>

namespace mkv::ops {

void paged_scatter(
    const std::vector<Component>& components, const int32_t* slots, int64_t num_tokens) {
  for (const Component& component : components) {
    const int shift = shift_of(component.block_size);
    for (int64_t token = 0; token < num_tokens; ++token) {
      const int64_t slot = slots[token];
      if (slot < 0) {
        continue;
      }
      const int64_t block = shift >= 0 ? slot >> shift : slot / component.block_size;
      if (block >= component.num_blocks) {
        continue;
      }
      const int64_t offset = slot - block * component.block_size;
      std::memcpy(
          component.cache + block * component.block_stride + offset * component.token_stride,
          component.rows + token * component.row_stride, static_cast<size_t>(component.bytes));
    }
  }
}

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
