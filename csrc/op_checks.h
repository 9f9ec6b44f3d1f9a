// SPDX-License-Identifier: Apache-2.0
// What each op takes, checked before its kernels run, and the table of all ops that a library of
// kernels offers. What the arguments mean is said in mkv_ascend/ops.
#pragma once

#include "argument_checks.h"

#include <torch/library.h>

namespace mkv::ops {

using Tensors = std::vector<at::Tensor>;
using Maybe = std::optional<at::Tensor>;

struct DraftPlanTensors {
  const at::Tensor& positions;
  const at::Tensor& num_requests;
  const Tensors& block_tables;
  const at::Tensor& group_table;
  int64_t max_model_len;
  const at::Tensor& step_positions;
  const at::Tensor& lengths;
  const at::Tensor& slots;
};

inline void check(const DraftPlanTensors& given) {
  Arguments arguments("draft_plan");
  arguments.tensor("positions", given.positions, kIndex, {kAnySize});
  arguments.tensor("num_requests", given.num_requests, kInt32, {1});
  arguments.groups(given.block_tables, given.group_table);
  arguments.model_length(given.max_model_len);
  const int64_t rows = given.positions.size(0);
  const auto groups = static_cast<int64_t>(given.block_tables.size());
  const auto dtype = given.positions.scalar_type();
  arguments.tensor("step_positions", given.step_positions, {dtype}, {kAnySize, rows});
  const int64_t steps = given.step_positions.size(0);
  arguments.tensor("lengths", given.lengths, kInt32, {steps, rows});
  arguments.tensor("slots", given.slots, kInt32, {steps, groups, rows});
}

struct ExpandTensors {
  const at::Tensor& token_ids;
  const at::Tensor& positions;
  const at::Tensor& next_token_ids;
  const at::Tensor& query_start_loc;
  const at::Tensor& num_requests;
  const Tensors& block_tables;
  const at::Tensor& group_table;
  int64_t sampled;
  bool shift;
  int64_t max_model_len;
  const at::Tensor& out_token_ids;
  const at::Tensor& out_positions;
  const at::Tensor& rejected_mask;
  const at::Tensor& masked_mask;
  const at::Tensor& sample_indices;
  const at::Tensor& out_query_start_loc;
  const at::Tensor& lengths;
  const at::Tensor& next_positions;
  const at::Tensor& slots;
  const Maybe& num_rejected;
  const Maybe& rope_positions;
  const Maybe& out_rope_positions;
  const Maybe& hidden_rows;
  int64_t padding_token_id;
  int64_t parallel_token_id;
};

inline void check(const ExpandTensors& given) {
  Arguments arguments("expand_inputs");
  arguments.require(
      given.sampled >= 1, "sampled_per_request is ", given.sampled, "; it must be 1 or more");
  arguments.model_length(given.max_model_len);
  arguments.groups(given.block_tables, given.group_table);
  arguments.require(
      given.rope_positions.has_value() == given.out_rope_positions.has_value(),
      "rope_positions and out_rope_positions must be given together or not at all");
  arguments.tensor("token_ids", given.token_ids, kIndex, {kAnySize});
  arguments.tensor("next_token_ids", given.next_token_ids, kIndex, {kAnySize});
  arguments.tensor("out_token_ids", given.out_token_ids, kInt32, {kAnySize});
  const int64_t tokens = given.token_ids.size(0);
  const int64_t rows = given.next_token_ids.size(0);
  const int64_t out_tokens = given.out_token_ids.size(0);
  const auto groups = static_cast<int64_t>(given.block_tables.size());
  arguments.tensor("positions", given.positions, kIndex, {tokens});
  arguments.tensor("query_start_loc", given.query_start_loc, kInt32, {rows + 1});
  arguments.tensor("num_requests", given.num_requests, kInt32, {1});
  arguments.tensor("out_positions", given.out_positions, kIndex, {out_tokens});
  arguments.tensor("rejected_mask", given.rejected_mask, kMask, {out_tokens});
  arguments.tensor("masked_mask", given.masked_mask, kMask, {out_tokens});
  arguments.tensor("sample_indices", given.sample_indices, kInt32, {rows * given.sampled});
  arguments.tensor("out_query_start_loc", given.out_query_start_loc, kInt32, {rows + 1});
  arguments.tensor("lengths", given.lengths, kInt32, {rows});
  arguments.tensor("next_positions", given.next_positions, kIndex, {rows});
  arguments.tensor("slots", given.slots, kInt32, {groups, out_tokens});
  arguments.tensor("num_rejected", given.num_rejected, kIndex, {rows});
  arguments.tensor("rope_positions", given.rope_positions, kIndex, {kAnySize, tokens});
  const int64_t axes = given.rope_positions.has_value() ? given.rope_positions->size(0) : 0;
  arguments.tensor("out_rope_positions", given.out_rope_positions, kIndex, {axes, out_tokens});
  arguments.tensor("hidden_rows", given.hidden_rows, kInt32, {tokens});
}

struct TargetSlotTensors {
  const at::Tensor& positions;
  const at::Tensor& query_start_loc;
  const at::Tensor& num_requests;
  const Tensors& block_tables;
  const at::Tensor& group_table;
  const Tensors& slots;
  const at::Tensor& slot_table;
};

inline void check(const TargetSlotTensors& given) {
  Arguments arguments("target_slots");
  arguments.tensor("positions", given.positions, kIndex, {kAnySize});
  arguments.tensor("query_start_loc", given.query_start_loc, kInt32, {kAnySize});
  arguments.require(
      given.query_start_loc.size(0) > 0, "query_start_loc is empty; it must be requests + 1 long");
  arguments.tensor("num_requests", given.num_requests, kInt32, {1});
  arguments.groups(given.block_tables, given.group_table);
  arguments.require(
      given.slots.size() == given.block_tables.size(), "slots holds ", given.slots.size(),
      " tensors for ", given.block_tables.size(), " block_tables");
  for (size_t index = 0; index < given.slots.size(); ++index) {
    arguments.tensor(Arguments::item("slots", index), given.slots[index], kInt32, {kAnySize});
  }
  const auto groups = static_cast<int64_t>(given.slots.size());
  arguments.tensor("slot_table", given.slot_table, kInt64, {groups, 2});
}

struct ZeroTensors {
  const at::Tensor& block_ids;
  const Tensors& caches;
  const at::Tensor& page_table;
};

inline void check(const ZeroTensors& given) {
  Arguments arguments("zero_blocks");
  arguments.tensor("block_ids", given.block_ids, kIndex, {kAnySize});
  const auto count = static_cast<int64_t>(given.caches.size());
  arguments.tensor("page_table", given.page_table, kInt64, {count, 4});
  for (size_t index = 0; index < given.caches.size(); ++index) {
    const at::Tensor& cache = given.caches[index];
    const auto name = Arguments::item("caches", index);
    arguments.on_one_device(name, cache);
    arguments.require(
        cache.dim() >= 1, name, " has the shape ", Arguments::tuple_of(cache.sizes(), false),
        "; it must be (blocks, ...)");
    arguments.dense(name, cache, 1, "one block");
  }
}

}  // namespace mkv::ops
