// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <algorithm>

namespace mkv::ops {

void target_slots(const TargetSlots& inputs) {
  for (size_t group = 0; group < inputs.groups.size(); ++group) {
    const Group& table = inputs.groups[group];
    int32_t* slots = inputs.slots[group];
    const int64_t size = inputs.sizes[group];
    int64_t token = 0;
    for (int64_t request = 0; request < inputs.num_requests; ++request) {
      const int64_t end =
          std::min({int64_t{inputs.query_start_loc[request + 1]}, inputs.num_tokens, size});
      for (; token < end; ++token) {
        slots[token] = table.slot(request, inputs.positions[token]);
      }
    }
    std::fill(slots + token, slots + size, kPaddingSlot);
  }
}

}  // namespace mkv::ops
