// SPDX-License-Identifier: Apache-2.0
// The kernels for CPU tensors behind torch.ops.mkv_ascend.*.
//
// Schemas are defined in mkv_ascend/ops, which also decides whether these kernels are used: loading
// the library only defines mkv_ascend_native.install, and the kernels as functions of that
// namespace, for checks around them.
#include "argument_reading.h"

#include <torch/library.h>

#include <algorithm>

namespace mkv::ops {

namespace {

using Tensors = std::vector<at::Tensor>;
using Maybe = std::optional<at::Tensor>;

void run_draft_plan(
    const at::Tensor& positions, const at::Tensor& num_requests, const Tensors& block_tables,
    const at::Tensor& group_table, int64_t max_model_len, const at::Tensor& step_positions,
    const at::Tensor& lengths, const at::Tensor& slots) {
  Arguments arguments("draft_plan");
  arguments.tensor("positions", positions, kIndex, {kAnySize});
  arguments.tensor("num_requests", num_requests, kInt32, {1});
  arguments.groups(block_tables, group_table);
  arguments.model_length(max_model_len);
  const int64_t rows = positions.size(0);
  const auto groups = static_cast<int64_t>(block_tables.size());
  arguments.tensor("step_positions", step_positions, {positions.scalar_type()}, {kAnySize, rows});
  const int64_t steps = step_positions.size(0);
  arguments.tensor("lengths", lengths, kInt32, {steps, rows});
  arguments.tensor("slots", slots, kInt32, {steps, groups, rows});
  draft_plan({
      .num_rows = rows,
      .num_steps = steps,
      .num_requests = live_requests(num_requests, rows),
      .max_model_len = max_model_len,
      .positions = indices(positions),
      .groups = read_groups(block_tables, group_table),
      .step_positions = step_positions.mutable_data_ptr(),
      .wide = positions.scalar_type() == at::kLong,
      .position_stride = step_positions.stride(0),
      .lengths = out_int32(lengths),
      .length_stride = lengths.stride(0),
      .slots = out_int32(slots),
      .slot_step_stride = slots.stride(0),
      .slot_group_stride = slots.stride(1),
  });
}

void run_expand_inputs(
    const at::Tensor& token_ids, const at::Tensor& positions, const at::Tensor& next_token_ids,
    const at::Tensor& query_start_loc, const at::Tensor& num_requests, const Tensors& block_tables,
    const at::Tensor& group_table, int64_t sampled_per_request, bool shift, int64_t max_model_len,
    const at::Tensor& out_token_ids, const at::Tensor& out_positions,
    const at::Tensor& rejected_mask, const at::Tensor& masked_mask,
    const at::Tensor& sample_indices, const at::Tensor& out_query_start_loc,
    const at::Tensor& lengths, const at::Tensor& next_positions, const at::Tensor& slots,
    const Maybe& num_rejected, const Maybe& rope_positions, const Maybe& out_rope_positions,
    const Maybe& hidden_rows, int64_t padding_token_id, int64_t parallel_token_id) {
  Arguments arguments("expand_inputs");
  arguments.require(
      sampled_per_request >= 1, "sampled_per_request is ", sampled_per_request,
      "; it must be 1 or more");
  arguments.model_length(max_model_len);
  arguments.groups(block_tables, group_table);
  arguments.require(
      rope_positions.has_value() == out_rope_positions.has_value(),
      "rope_positions and out_rope_positions must be given together or not at all");
  arguments.tensor("token_ids", token_ids, kIndex, {kAnySize});
  arguments.tensor("next_token_ids", next_token_ids, kIndex, {kAnySize});
  arguments.tensor("out_token_ids", out_token_ids, kInt32, {kAnySize});
  const int64_t tokens = token_ids.size(0);
  const int64_t rows = next_token_ids.size(0);
  const int64_t out_tokens = out_token_ids.size(0);
  const auto groups = static_cast<int64_t>(block_tables.size());
  arguments.tensor("positions", positions, kIndex, {tokens});
  arguments.tensor("query_start_loc", query_start_loc, kInt32, {rows + 1});
  arguments.tensor("num_requests", num_requests, kInt32, {1});
  arguments.tensor("out_positions", out_positions, kIndex, {out_tokens});
  arguments.tensor("rejected_mask", rejected_mask, kMask, {out_tokens});
  arguments.tensor("masked_mask", masked_mask, kMask, {out_tokens});
  arguments.tensor("sample_indices", sample_indices, kInt32, {rows * sampled_per_request});
  arguments.tensor("out_query_start_loc", out_query_start_loc, kInt32, {rows + 1});
  arguments.tensor("lengths", lengths, kInt32, {rows});
  arguments.tensor("next_positions", next_positions, kIndex, {rows});
  arguments.tensor("slots", slots, kInt32, {groups, out_tokens});
  arguments.tensor("num_rejected", num_rejected, kIndex, {rows});
  arguments.tensor("rope_positions", rope_positions, kIndex, {kAnySize, tokens});
  arguments.tensor("hidden_rows", hidden_rows, kInt32, {tokens});
  ExpandInputs inputs{
      .num_rows = rows,
      .num_tokens = tokens,
      .num_out_tokens = out_tokens,
      .num_requests = live_requests(num_requests, rows),
      .sampled = sampled_per_request,
      .shift = shift,
      .max_model_len = max_model_len,
      .padding_token_id = padding_token_id,
      .parallel_token_id = parallel_token_id,
      .token_ids = indices(token_ids),
      .positions = indices(positions),
      .next_token_ids = indices(next_token_ids),
      .query_start_loc = query_start_loc.const_data_ptr<int32_t>(),
      .num_rejected = indices(num_rejected),
      .rope_positions = {},
      .out_rope_positions = {},
      .groups = read_groups(block_tables, group_table),
      .out_token_ids = out_int32(out_token_ids),
      .out_positions = out_indices(out_positions),
      .rejected_mask = out_mask(rejected_mask),
      .masked_mask = out_mask(masked_mask),
      .sample_indices = out_int32(sample_indices),
      .hidden_rows = hidden_rows.has_value() ? out_int32(*hidden_rows) : nullptr,
      .out_query_start_loc = out_int32(out_query_start_loc),
      .lengths = out_int32(lengths),
      .next_positions = out_indices(next_positions),
      .slots = out_int32(slots),
      .slot_stride = slots.stride(0),
  };
  if (rope_positions.has_value()) {
    arguments.tensor(
        "out_rope_positions", out_rope_positions, kIndex, {rope_positions->size(0), out_tokens});
    for (int64_t axis = 0; axis < rope_positions->size(0); ++axis) {
      inputs.rope_positions.push_back(indices(rope_positions->select(0, axis)));
      inputs.out_rope_positions.push_back(out_indices(out_rope_positions->select(0, axis)));
    }
  }
  expand_inputs(inputs);
}

void run_target_slots(
    const at::Tensor& positions, const at::Tensor& query_start_loc, const at::Tensor& num_requests,
    const Tensors& block_tables, const at::Tensor& group_table, const Tensors& slots,
    const at::Tensor& slot_table) {
  Arguments arguments("target_slots");
  arguments.tensor("positions", positions, kIndex, {kAnySize});
  arguments.tensor("query_start_loc", query_start_loc, kInt32, {kAnySize});
  arguments.require(
      query_start_loc.size(0) > 0, "query_start_loc is empty; it must be requests + 1 long");
  arguments.tensor("num_requests", num_requests, kInt32, {1});
  arguments.groups(block_tables, group_table);
  arguments.require(
      slots.size() == block_tables.size(), "slots holds ", slots.size(), " tensors for ",
      block_tables.size(), " block_tables");
  TargetSlots inputs{
      .num_tokens = positions.size(0),
      .num_requests = live_requests(num_requests, query_start_loc.size(0) - 1),
      .positions = indices(positions),
      .query_start_loc = query_start_loc.const_data_ptr<int32_t>(),
      .groups = read_groups(block_tables, group_table),
      .slots = {},
      .sizes = {},
  };
  for (size_t index = 0; index < slots.size(); ++index) {
    arguments.tensor(Arguments::item("slots", index), slots[index], kInt32, {kAnySize});
    inputs.slots.push_back(out_int32(slots[index]));
    inputs.sizes.push_back(slots[index].size(0));
  }
  arguments.tensor("slot_table", slot_table, kInt64, {static_cast<int64_t>(slots.size()), 2});
  target_slots(inputs);
}

Component read_component(
    Arguments& arguments, size_t index, const at::Tensor& row, const at::Tensor& cache,
    int64_t tokens) {
  const auto row_name = Arguments::item("rows", index);
  const auto cache_name = Arguments::item("caches", index);
  arguments.on_one_device(row_name, row);
  arguments.on_one_device(cache_name, cache);
  const auto cache_shape = Arguments::tuple_of(cache.sizes(), false);
  arguments.require(
      cache.dim() >= 2, cache_name, " has the shape ", cache_shape,
      "; it must be (blocks, block size, ...)");
  std::vector<int64_t> wanted = {tokens};
  wanted.insert(wanted.end(), cache.sizes().begin() + 2, cache.sizes().end());
  arguments.require(
      row.sizes() == at::IntArrayRef(wanted), row_name, " has the shape ",
      Arguments::tuple_of(row.sizes(), false), "; with slots ", tokens, " long and ", cache_name,
      " ", cache_shape, " it must be ", Arguments::tuple_of(wanted, false));
  arguments.require(
      row.scalar_type() == cache.scalar_type(), row_name, " is torch.",
      Arguments::name_of(row.scalar_type()), " and ", cache_name, " torch.",
      Arguments::name_of(cache.scalar_type()), "; they must be the same: the op copies bytes");
  arguments.dense(row_name, row, 1, "one token's row");
  arguments.dense(cache_name, cache, 2, "one token's row");
  const auto item = static_cast<int64_t>(cache.element_size());
  const int64_t numbers = tokens > 0 ? row.numel() / tokens : 0;
  return {
      .rows = static_cast<const char*>(row.const_data_ptr()),
      .row_stride = row.stride(0) * item,
      .cache = static_cast<char*>(cache.mutable_data_ptr()),
      .num_blocks = cache.size(0),
      .block_size = cache.size(1),
      .block_stride = cache.stride(0) * item,
      .token_stride = cache.stride(1) * item,
      .bytes = numbers * item,
  };
}

void run_paged_scatter(const Tensors& rows, const at::Tensor& slots, const Tensors& caches) {
  Arguments arguments("paged_scatter");
  arguments.require(
      !rows.empty() && rows.size() <= 4, "rows holds ", rows.size(),
      " components; it must hold 1 to 4");
  arguments.require(
      caches.size() == rows.size(), "caches holds ", caches.size(), " tensors for ", rows.size(),
      " of rows");
  arguments.tensor("slots", slots, kInt32, {kAnySize});
  std::vector<Component> components;
  for (size_t index = 0; index < rows.size(); ++index) {
    components.push_back(
        read_component(arguments, index, rows[index], caches[index], slots.size(0)));
  }
  paged_scatter(components, slots.const_data_ptr<int32_t>(), slots.size(0));
}

void run_zero_blocks(
    const at::Tensor& block_ids, const Tensors& caches, const at::Tensor& page_table) {
  Arguments arguments("zero_blocks");
  arguments.tensor("block_ids", block_ids, kIndex, {kAnySize});
  arguments.tensor("page_table", page_table, kInt64, {static_cast<int64_t>(caches.size()), 4});
  std::vector<Pages> pages;
  for (size_t index = 0; index < caches.size(); ++index) {
    const at::Tensor& cache = caches[index];
    const auto name = Arguments::item("caches", index);
    arguments.on_one_device(name, cache);
    arguments.require(
        cache.dim() >= 1, name, " has the shape ", Arguments::tuple_of(cache.sizes(), false),
        "; it must be (blocks, ...)");
    arguments.dense(name, cache, 1, "one block");
    const auto item = static_cast<int64_t>(cache.element_size());
    const int64_t blocks = cache.size(0);
    pages.push_back(
        {static_cast<char*>(cache.mutable_data_ptr()), cache.stride(0) * item,
         blocks > 0 ? cache.numel() / blocks * item : 0, blocks});
  }
  zero_blocks(pages, indices(block_ids), block_ids.size(0));
}

// Give one op of torch.ops.mkv_ascend its kernel for CPU tensors, for the life of the process.
void install(const std::string& name) {
  static torch::Library library(
      torch::Library::IMPL, "mkv_ascend", c10::DispatchKey::CPU, __FILE__, __LINE__);
  if (name == "draft_plan") {
    library.impl("draft_plan", TORCH_FN(run_draft_plan));
  } else if (name == "expand_inputs") {
    library.impl("expand_inputs", TORCH_FN(run_expand_inputs));
  } else if (name == "target_slots") {
    library.impl("target_slots", TORCH_FN(run_target_slots));
  } else if (name == "paged_scatter") {
    library.impl("paged_scatter", TORCH_FN(run_paged_scatter));
  } else if (name == "zero_blocks") {
    library.impl("zero_blocks", TORCH_FN(run_zero_blocks));
  } else {
    TORCH_CHECK_VALUE(false, "there is no native kernel ", name);
  }
}

}  // namespace

TORCH_LIBRARY(mkv_ascend_native, library) {
  library.def("install(str name) -> ()", &install);
  library.def("draft_plan", &run_draft_plan);
  library.def("expand_inputs", &run_expand_inputs);
  library.def("target_slots", &run_target_slots);
  library.def("paged_scatter", &run_paged_scatter);
  library.def("zero_blocks", &run_zero_blocks);
}

}  // namespace mkv::ops
