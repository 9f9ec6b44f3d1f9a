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

inline void touch(
    std::vector<Touched>& touched, const char* name, const at::Tensor& tensor, bool written) {
  touched.push_back({name, tensor, written});
}

inline void touch(
    std::vector<Touched>& touched, const char* name, const Maybe& tensor, bool written) {
  if (tensor.has_value()) {
    touched.push_back({name, *tensor, written});
  }
}

inline void touch(
    std::vector<Touched>& touched, const char* name, const Tensors& tensors, bool written) {
  for (size_t index = 0; index < tensors.size(); ++index) {
    touched.push_back({Arguments::item(name, index), tensors[index], written});
  }
}

inline void touch(
    std::vector<Touched>& /*touched*/, const char* /*name*/, int64_t /*number*/, bool /*written*/) {
}

#define MKV_TOUCH(kind, name, ...) touch(touched, #name, given.name, kind::written);
#define MKV_TOUCHED(op, Given, LIST)                           \
  inline std::vector<Touched> touched_by(const Given& given) { \
    std::vector<Touched> touched;                              \
    LIST(MKV_TOUCH)                                            \
    return touched;                                            \
  }
MKV_OPS(MKV_TOUCHED)
#undef MKV_TOUCHED
#undef MKV_TOUCH

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
    Runner::call(
        "draft_plan", touched_by(given),
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
    Runner::call("expand_inputs", touched_by(given), [arguments](uint32_t cores, void* stream) {
      mkv_ascend_expand_inputs(cores, stream, &arguments);
    });
  }

  static void run(const TargetSlotTensors& given) {
    int64_t most_slots = 0;
    for (const at::Tensor& slots : given.slots) {
      most_slots = std::max(most_slots, slots.size(0));
    }
    Runner::call(
        "target_slots", touched_by(given),
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
    Runner::call(
        "zero_blocks", touched_by(given),
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
#define MKV_FILL_ADDRESS(name) arguments.name = address(given.name);
#define MKV_FILL_WIDE(name) arguments.wide_##name = wide(given.name);
#define MKV_FILLED_BELOW(name)
    MKV_EXPAND_INPUTS_WORDS(MKV_FILL_ADDRESS, MKV_FILLED_BELOW, MKV_FILLED_BELOW, MKV_FILL_WIDE)
#undef MKV_FILL_ADDRESS
#undef MKV_FILL_WIDE
#undef MKV_FILLED_BELOW
    arguments.num_rows = given.next_token_ids.size(0);
    arguments.num_tokens = given.token_ids.size(0);
    arguments.num_out_tokens = given.out_token_ids.size(0);
    arguments.num_groups = static_cast<int64_t>(given.block_tables.size());
    arguments.table_rows = least_rows(given.block_tables);
    arguments.num_axes = rope ? given.rope_positions->size(0) : 0;
    arguments.sampled = given.sampled_per_request;
    arguments.max_model_len = given.max_model_len;
    arguments.rope_stride = rope ? given.rope_positions->stride(0) : 0;
    arguments.out_rope_stride = rope ? given.out_rope_positions->stride(0) : 0;
    arguments.slot_stride = given.slots.stride(0);
    arguments.shift = given.shift ? 1 : 0;
    arguments.padding_token_id = static_cast<int32_t>(given.padding_token_id);
    arguments.parallel_token_id = static_cast<int32_t>(given.parallel_token_id);
    return arguments;
  }
};

}  // namespace mkv::ops
