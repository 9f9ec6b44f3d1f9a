// SPDX-License-Identifier: Apache-2.0
// The kernels for CPU tensors behind torch.ops.mkv_ascend.*.
//
// Schemas are defined in mkv_ascend/ops, which also decides whether these kernels are used: loading
// the library only defines torch.ops.mkv_ascend_native.
#include "argument_reading.h"
#include "op_table.h"

#include <algorithm>

namespace mkv::ops {

namespace {

struct CpuKernels {
  static void run(const DraftPlanTensors& given) {
    const int64_t rows = given.positions.size(0);
    draft_plan({
        .num_rows = rows,
        .num_steps = given.lengths.size(0),
        .num_requests = live_requests(given.num_requests, rows),
        .max_model_len = given.max_model_len,
        .positions = indices(given.positions),
        .groups = read_groups(given.block_tables, given.group_table),
        .step_positions = given.step_positions.mutable_data_ptr(),
        .wide = is_wide(given.positions),
        .position_stride = given.step_positions.stride(0),
        .lengths = out_int32(given.lengths),
        .length_stride = given.lengths.stride(0),
        .slots = out_int32(given.slots),
        .slot_step_stride = given.slots.stride(0),
        .slot_group_stride = given.slots.stride(1),
    });
  }

  static void run(const ExpandTensors& given) {
    const int64_t rows = given.next_token_ids.size(0);
    ExpandInputs inputs{
        .num_rows = rows,
        .num_tokens = given.token_ids.size(0),
        .num_out_tokens = given.out_token_ids.size(0),
        .num_requests = live_requests(given.num_requests, rows),
        .sampled = given.sampled_per_request,
        .shift = given.shift,
        .max_model_len = given.max_model_len,
        .padding_token_id = given.padding_token_id,
        .parallel_token_id = given.parallel_token_id,
        .token_ids = indices(given.token_ids),
        .positions = indices(given.positions),
        .next_token_ids = indices(given.next_token_ids),
        .query_start_loc = given.query_start_loc.const_data_ptr<int32_t>(),
        .num_rejected = indices(given.num_rejected),
        .rope_positions = {},
        .out_rope_positions = {},
        .groups = read_groups(given.block_tables, given.group_table),
        .out_token_ids = out_int32(given.out_token_ids),
        .out_positions = out_indices(given.out_positions),
        .rejected_mask = out_mask(given.rejected_mask),
        .masked_mask = out_mask(given.masked_mask),
        .sample_indices = out_int32(given.sample_indices),
        .hidden_rows = given.hidden_rows.has_value() ? out_int32(*given.hidden_rows) : nullptr,
        .out_query_start_loc = out_int32(given.out_query_start_loc),
        .lengths = out_int32(given.lengths),
        .next_positions = out_indices(given.next_positions),
        .slots = out_int32(given.slots),
        .slot_stride = given.slots.stride(0),
    };
    const int64_t axes = given.rope_positions.has_value() ? given.rope_positions->size(0) : 0;
    for (int64_t axis = 0; axis < axes; ++axis) {
      inputs.rope_positions.push_back(indices(given.rope_positions->select(0, axis)));
      inputs.out_rope_positions.push_back(out_indices(given.out_rope_positions->select(0, axis)));
    }
    expand_inputs(inputs);
  }

  static void run(const TargetSlotTensors& given) {
    TargetSlots inputs{
        .num_tokens = given.positions.size(0),
        .num_requests = live_requests(given.num_requests, given.query_start_loc.size(0) - 1),
        .positions = indices(given.positions),
        .query_start_loc = given.query_start_loc.const_data_ptr<int32_t>(),
        .groups = read_groups(given.block_tables, given.group_table),
        .slots = {},
        .sizes = {},
    };
    for (const at::Tensor& slots : given.slots) {
      inputs.slots.push_back(out_int32(slots));
      inputs.sizes.push_back(slots.size(0));
    }
    target_slots(inputs);
  }

  static void run(const ZeroTensors& given) {
    std::vector<Pages> pages;
    for (const at::Tensor& cache : given.caches) {
      const auto item = static_cast<int64_t>(cache.element_size());
      const int64_t blocks = cache.size(0);
      pages.push_back({
          .start = static_cast<char*>(cache.mutable_data_ptr()),
          .stride = cache.stride(0) * item,
          .bytes = blocks > 0 ? cache.numel() / blocks * item : 0,
          .num_blocks = blocks,
      });
    }
    zero_blocks(pages, indices(given.block_ids), given.block_ids.size(0));
  }
};

void install(const std::string& name) {
  OpTable<CpuKernels>::install(name, c10::DispatchKey::CPU);
}

}  // namespace

TORCH_LIBRARY(mkv_ascend_native, library) {
  library.def("install(str name) -> ()", &install);
  OpTable<CpuKernels>::define(library);
}

}  // namespace mkv::ops
