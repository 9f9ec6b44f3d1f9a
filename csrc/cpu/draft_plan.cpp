// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

#include <algorithm>

namespace mkv::ops {

namespace {

// Rows are walked through once, each with all of its steps.
template <typename Position>
void write_positions(const DraftPlan& plan, const Position* given) {
  auto* const positions = static_cast<Position*>(plan.step_positions);
  const auto limit = static_cast<uint64_t>(plan.max_model_len);
  for (int64_t row = 0; row < plan.num_requests; ++row) {
    for (int64_t step = 0; step < plan.num_steps; ++step) {
      const int64_t moved = int64_t{given[row]} + step + 1;
      const int64_t kept = static_cast<uint64_t>(moved) < limit ? moved : 0;
      positions[step * plan.position_stride + row] = static_cast<Position>(kept);
      plan.lengths[step * plan.length_stride + row] = static_cast<int32_t>(kept + 1);
    }
  }
  for (int64_t row = plan.num_requests; row < plan.num_rows; ++row) {
    for (int64_t step = 0; step < plan.num_steps; ++step) {
      positions[step * plan.position_stride + row] = 0;
      plan.lengths[step * plan.length_stride + row] = 0;
    }
  }
}

template <typename Position, typename Rule>
void write_slots(
    const DraftPlan& plan, const Position* given, int32_t* slots, int64_t served,
    const Rule& rule) {
  for (int64_t row = 0; row < served; ++row) {
    const int32_t* const ids = rule.row(row);
    for (int64_t step = 0; step < plan.num_steps; ++step) {
      const int64_t moved = int64_t{given[row]} + step + 1;
      slots[step * plan.slot_step_stride + row] =
          moved < plan.max_model_len ? rule.slot(ids, moved) : kPaddingSlot;
    }
  }
  for (int64_t row = served; row < plan.num_rows; ++row) {
    for (int64_t step = 0; step < plan.num_steps; ++step) {
      slots[step * plan.slot_step_stride + row] = kPaddingSlot;
    }
  }
}

}  // namespace

void draft_plan(const DraftPlan& plan) {
  plan.positions.with_elements([&](const auto* given) {
    write_positions(plan, given);
    for (size_t group = 0; group < plan.groups.size(); ++group) {
      int32_t* const slots = plan.slots + static_cast<int64_t>(group) * plan.slot_group_stride;
      const int64_t served = std::min(plan.num_requests, plan.groups[group].rows);
      with_rule(plan.groups[group], [&](const auto& rule) {
        write_slots(plan, given, slots, served, rule);
      });
    }
  });
}

}  // namespace mkv::ops
