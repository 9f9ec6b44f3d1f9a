// SPDX-License-Identifier: Apache-2.0
#include "kernels.h"

namespace mkv::ops {

namespace {

template <typename Position>
void write_positions(const DraftPlan& plan, int64_t step) {
  auto* positions = static_cast<Position*>(plan.step_positions) + step * plan.position_stride;
  int32_t* lengths = plan.lengths + step * plan.length_stride;
  for (int64_t row = 0; row < plan.num_rows; ++row) {
    const bool live = row < plan.num_requests;
    const int64_t moved = live ? plan.positions[row] + step + 1 : 0;
    const int64_t kept = moved >= 0 && moved < plan.max_model_len ? moved : 0;
    positions[row] = static_cast<Position>(kept);
    lengths[row] = live ? static_cast<int32_t>(kept + 1) : 0;
  }
}

void write_slots(const DraftPlan& plan, int64_t step, size_t group) {
  int32_t* slots = plan.slots + step * plan.slot_step_stride +
                   static_cast<int64_t>(group) * plan.slot_group_stride;
  const Group& table = plan.groups[group];
  for (int64_t row = 0; row < plan.num_rows; ++row) {
    const int64_t moved = row < plan.num_requests ? plan.positions[row] + step + 1 : -1;
    slots[row] = moved < plan.max_model_len ? table.slot(row, moved) : kPaddingSlot;
  }
}

}  // namespace

void draft_plan(const DraftPlan& plan) {
  for (int64_t step = 0; step < plan.num_steps; ++step) {
    if (plan.wide) {
      write_positions<int64_t>(plan, step);
    } else {
      write_positions<int32_t>(plan, step);
    }
    for (size_t group = 0; group < plan.groups.size(); ++group) {
      write_slots(plan, step, group);
    }
  }
}

}  // namespace mkv::ops
