// SPDX-License-Identifier: Apache-2.0
// The custom ops for CPU tensors, on plain memory. What they compute is said once, in
// mkv_ascend/ops; arguments are checked by the binding.
#pragma once

#include "groups.h"

#include <cstdint>
#include <vector>

namespace mkv::ops {

struct DraftPlan {
  int64_t num_rows;
  int64_t num_steps;
  int64_t num_requests;
  int64_t max_model_len;
  Indices positions;
  std::vector<Group> groups;
  void* step_positions;  // the width of positions
  bool wide;
  int64_t position_stride;  // elements from step to step
  int32_t* lengths;
  int64_t length_stride;
  int32_t* slots;
  int64_t slot_step_stride;
  int64_t slot_group_stride;
};

void draft_plan(const DraftPlan& plan);

struct ExpandInputs {
  int64_t num_rows;    // requests, padding included
  int64_t num_tokens;  // input rows
  int64_t num_out_tokens;
  int64_t num_requests;
  int64_t sampled;
  bool shift;
  int64_t max_model_len;
  int64_t padding_token_id;
  int64_t parallel_token_id;
  Indices token_ids;
  Indices positions;
  Indices next_token_ids;
  const int32_t* query_start_loc;
  Indices num_rejected;                 // may be none
  std::vector<Indices> rope_positions;  // per axis
  std::vector<OutIndices> out_rope_positions;
  std::vector<Group> groups;
  int32_t* out_token_ids;
  OutIndices out_positions;
  int8_t* rejected_mask;
  int8_t* masked_mask;
  int32_t* sample_indices;
  int32_t* hidden_rows;  // may be none
  int32_t* out_query_start_loc;
  int32_t* lengths;
  OutIndices next_positions;
  int32_t* slots;
  int64_t slot_stride;  // elements from group to group
};

void expand_inputs(const ExpandInputs& inputs);

struct TargetSlots {
  int64_t num_tokens;
  int64_t num_requests;
  Indices positions;
  const int32_t* query_start_loc;
  std::vector<Group> groups;
  std::vector<int32_t*> slots;
  std::vector<int64_t> sizes;
};

void target_slots(const TargetSlots& inputs);

// Blocks of one cache, in bytes.
struct Pages {
  char* start;
  int64_t stride;
  int64_t bytes;
  int64_t num_blocks;
};

void zero_blocks(const std::vector<Pages>& caches, Indices block_ids, int64_t num_ids);

}  // namespace mkv::ops
