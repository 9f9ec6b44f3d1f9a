// SPDX-License-Identifier: Apache-2.0
// The ops' tensors as arguments of the launchers. `Runner` has a static function
//   call(op, tensors that the kernel touches, launch)
// which runs `launch(cores, stream)`, now or on another thread: launches capture by value.
#pragma once

#include "../op_checks.h"
#include "launchers.h"

#include <algorithm>
#include <limits>

namespace mkv::ops {

// A tensor that a kernel may touch, by its own address or one in a table.
struct Touched {
  std::string name;
  at::Tensor tensor;
  bool written;
};

inline uint8_t* address(const at::Tensor& tensor) {
  return static_cast<uint8_t*>(tensor.data_ptr());
}

inline uint8_t* address(const Maybe& tensor) {
  return tensor.has_value() ? address(*tensor) : nullptr;
}

inline int32_t wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kLong ? 1 : 0;
}

inline int32_t wide(const Maybe& tensor) {
  return tensor.has_value() ? wide(*tensor) : 0;
}

inline void touch_all(
    std::vector<Touched>& touched, const char* name, const Tensors& tensors, bool written) {
  for (size_t index = 0; index < tensors.size(); ++index) {
    touched.push_back({Arguments::item(name, index), tensors[index], written});
  }
}

// The least number of rows of all block tables.
inline int64_t least_rows(const Tensors& block_tables) {
  int64_t rows = std::numeric_limits<int32_t>::max();
  for (const at::Tensor& table : block_tables) {
    rows = std::min(rows, table.size(0));
  }
  return rows;
}

template <typename Runner>
struct AscendKernels {
  static void run(const DraftPlanTensors& given) {
    const int64_t rows = given.positions.size(0);
    const int64_t steps = given.lengths.size(0);
    TORCH_CHECK_VALUE(
        steps <= kMostPlannedSteps, "mkv_ascend::draft_plan: lengths has ", steps,
        " steps; the AscendC kernel plans up to ", kMostPlannedSteps);
    std::vector<Touched> touched = {
        {"positions", given.positions, false},     {"num_requests", given.num_requests, false},
        {"group_table", given.group_table, false}, {"step_positions", given.step_positions, true},
        {"lengths", given.lengths, true},          {"slots", given.slots, true},
    };
    touch_all(touched, "block_tables", given.block_tables, false);
    Runner::call(
        "draft_plan", touched,
        [rows, steps, positions = address(given.positions),
         num_requests = address(given.num_requests), group_table = address(given.group_table),
         step_positions = address(given.step_positions), lengths = address(given.lengths),
         slots = address(given.slots), is_wide = wide(given.positions),
         groups = static_cast<int64_t>(given.block_tables.size()),
         table_rows = least_rows(given.block_tables), max_model_len = given.max_model_len,
         position_stride = given.step_positions.stride(0), length_stride = given.lengths.stride(0),
         step_stride = given.slots.stride(0),
         group_stride = given.slots.stride(1)](uint32_t cores, void* stream) {
          mkv_ascend_draft_plan(
              cores, stream, positions, num_requests, group_table, step_positions, lengths, slots,
              is_wide, rows, steps, groups, table_rows, max_model_len, position_stride,
              length_stride, step_stride, group_stride);
        });
  }

  static void run(const ExpandTensors& given) {
    const MkvExpandInputs arguments = expand_arguments(given);
    TORCH_CHECK_VALUE(
        arguments.sampled <= kMostSampledRows, "mkv_ascend::expand_inputs: sampled_per_request is ",
        arguments.sampled, "; the AscendC kernel takes up to ", kMostSampledRows);
    Runner::call("expand_inputs", expand_touched(given), [arguments](uint32_t cores, void* stream) {
      mkv_ascend_expand_inputs(cores, stream, &arguments);
    });
  }

  static void run(const TargetSlotTensors& given) {
    std::vector<Touched> touched = {
        {"positions", given.positions, false},
        {"query_start_loc", given.query_start_loc, false},
        {"num_requests", given.num_requests, false},
        {"group_table", given.group_table, false},
        {"slot_table", given.slot_table, false},
    };
    touch_all(touched, "block_tables", given.block_tables, false);
    touch_all(touched, "slots", given.slots, true);
    int64_t most_slots = 0;
    for (const at::Tensor& slots : given.slots) {
      most_slots = std::max(most_slots, slots.size(0));
    }
    Runner::call(
        "target_slots", touched,
        [positions = address(given.positions), query_start_loc = address(given.query_start_loc),
         num_requests = address(given.num_requests), group_table = address(given.group_table),
         slot_table = address(given.slot_table), is_wide = wide(given.positions),
         tokens = given.positions.size(0), rows = given.query_start_loc.size(0) - 1,
         groups = static_cast<int64_t>(given.slots.size()),
         table_rows = least_rows(given.block_tables), most_slots](uint32_t cores, void* stream) {
          mkv_ascend_target_slots(
              cores, stream, positions, query_start_loc, num_requests, group_table, slot_table,
              is_wide, tokens, rows, groups, table_rows, most_slots);
        });
  }

  static void run(const ZeroTensors& given) {
    std::vector<Touched> touched = {
        {"block_ids", given.block_ids, false}, {"page_table", given.page_table, false}};
    touch_all(touched, "caches", given.caches, true);
    Runner::call(
        "zero_blocks", touched,
        [block_ids = address(given.block_ids), is_wide = wide(given.block_ids),
         num_ids = given.block_ids.size(0), page_table = address(given.page_table),
         caches = static_cast<int64_t>(given.caches.size())](uint32_t cores, void* stream) {
          mkv_ascend_zero_blocks(cores, stream, block_ids, is_wide, num_ids, page_table, caches);
        });
  }

 private:
  static MkvExpandInputs expand_arguments(const ExpandTensors& given) {
    const bool rope = given.rope_positions.has_value();
    MkvExpandInputs arguments{};
    arguments.token_ids = address(given.token_ids);
    arguments.positions = address(given.positions);
    arguments.rope_positions = address(given.rope_positions);
    arguments.next_token_ids = address(given.next_token_ids);
    arguments.query_start_loc = address(given.query_start_loc);
    arguments.num_rejected = address(given.num_rejected);
    arguments.num_requests = address(given.num_requests);
    arguments.group_table = address(given.group_table);
    arguments.out_token_ids = address(given.out_token_ids);
    arguments.out_positions = address(given.out_positions);
    arguments.out_rope_positions = address(given.out_rope_positions);
    arguments.rejected_mask = address(given.rejected_mask);
    arguments.masked_mask = address(given.masked_mask);
    arguments.sample_indices = address(given.sample_indices);
    arguments.hidden_rows = address(given.hidden_rows);
    arguments.out_query_start_loc = address(given.out_query_start_loc);
    arguments.lengths = address(given.lengths);
    arguments.next_positions = address(given.next_positions);
    arguments.slots = address(given.slots);
    arguments.num_rows = given.next_token_ids.size(0);
    arguments.num_tokens = given.token_ids.size(0);
    arguments.num_out_tokens = given.out_token_ids.size(0);
    arguments.num_groups = static_cast<int64_t>(given.block_tables.size());
    arguments.table_rows = least_rows(given.block_tables);
    arguments.num_axes = rope ? given.rope_positions->size(0) : 0;
    arguments.sampled = given.sampled;
    arguments.max_model_len = given.max_model_len;
    arguments.rope_stride = rope ? given.rope_positions->stride(0) : 0;
    arguments.out_rope_stride = rope ? given.out_rope_positions->stride(0) : 0;
    arguments.slot_stride = given.slots.stride(0);
    arguments.shift = given.shift ? 1 : 0;
    arguments.padding_token_id = static_cast<int32_t>(given.padding_token_id);
    arguments.parallel_token_id = static_cast<int32_t>(given.parallel_token_id);
    arguments.wide_token_ids = wide(given.token_ids);
    arguments.wide_positions = wide(given.positions);
    arguments.wide_rope_positions = wide(given.rope_positions);
    arguments.wide_next_token_ids = wide(given.next_token_ids);
    arguments.wide_rejected = wide(given.num_rejected);
    arguments.wide_out_positions = wide(given.out_positions);
    arguments.wide_out_rope_positions = wide(given.out_rope_positions);
    arguments.wide_next_positions = wide(given.next_positions);
    return arguments;
  }

  static std::vector<Touched> expand_touched(const ExpandTensors& given) {
    std::vector<Touched> touched = {
        {"token_ids", given.token_ids, false},
        {"positions", given.positions, false},
        {"next_token_ids", given.next_token_ids, false},
        {"query_start_loc", given.query_start_loc, false},
        {"num_requests", given.num_requests, false},
        {"group_table", given.group_table, false},
        {"out_token_ids", given.out_token_ids, true},
        {"out_positions", given.out_positions, true},
        {"rejected_mask", given.rejected_mask, true},
        {"masked_mask", given.masked_mask, true},
        {"sample_indices", given.sample_indices, true},
        {"out_query_start_loc", given.out_query_start_loc, true},
        {"lengths", given.lengths, true},
        {"next_positions", given.next_positions, true},
        {"slots", given.slots, true},
    };
    touch_all(touched, "block_tables", given.block_tables, false);
    const auto touch = [&](const char* name, const Maybe& tensor, bool written) {
      if (tensor.has_value()) {
        touched.push_back({name, *tensor, written});
      }
    };
    touch("num_rejected", given.num_rejected, false);
    touch("rope_positions", given.rope_positions, false);
    touch("out_rope_positions", given.out_rope_positions, true);
    touch("hidden_rows", given.hidden_rows, true);
    return touched;
  }
};

}  // namespace mkv::ops
