// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <algorithm>

namespace mkv::ops {

namespace {

template <typename Position, typename Rule>
void write_group(
    const TargetSlots& inputs, size_t group, const Position* positions, const Rule& rule) {
  int32_t* const slots = inputs.slots[group];
  const int64_t most = std::min(inputs.num_tokens, inputs.sizes[group]);
  const int64_t served = std::min(inputs.num_requests, inputs.groups[group].rows);
  int64_t token = 0;
  for (int64_t request = 0; request < served; ++request) {
    const int32_t* const row = rule.row(request);
    const int64_t end = std::min<int64_t>(inputs.query_start_loc[request + 1], most);
    for (; token < end; ++token) {
      slots[token] = rule.slot(row, positions[token]);
    }
  }
  for (; token < inputs.sizes[group]; ++token) {
    slots[token] = kPaddingSlot;
  }
}

}  // namespace

void target_slots(const TargetSlots& inputs) {
  inputs.positions.with_elements([&](const auto* positions) {
    for (size_t group = 0; group < inputs.groups.size(); ++group) {
      with_rule(inputs.groups[group], [&](const auto& rule) {
        write_group(inputs, group, positions, rule);
      });
    }
  });
}

}  // namespace mkv::ops
