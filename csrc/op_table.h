// SPDX-License-Identifier: Apache-2.0
// The ops with the signatures of their schemas, over any library of kernels.
//
// `Kernels` has a static function run() for the tensors of each op; they were checked before.
#pragma once

#include "op_checks.h"

namespace mkv::ops {

template <typename Kernels>
struct OpTable {
  static void draft_plan(
      const at::Tensor& positions, const at::Tensor& num_requests, const Tensors& block_tables,
      const at::Tensor& group_table, int64_t max_model_len, const at::Tensor& step_positions,
      const at::Tensor& lengths, const at::Tensor& slots) {
    checked_run(
        DraftPlanTensors{
            positions, num_requests, block_tables, group_table, max_model_len, step_positions,
            lengths, slots});
  }

  static void expand_inputs(
      const at::Tensor& token_ids, const at::Tensor& positions, const at::Tensor& next_token_ids,
      const at::Tensor& query_start_loc, const at::Tensor& num_requests,
      const Tensors& block_tables, const at::Tensor& group_table, int64_t sampled_per_request,
      bool shift, int64_t max_model_len, const at::Tensor& out_token_ids,
      const at::Tensor& out_positions, const at::Tensor& rejected_mask,
      const at::Tensor& masked_mask, const at::Tensor& sample_indices,
      const at::Tensor& out_query_start_loc, const at::Tensor& lengths,
      const at::Tensor& next_positions, const at::Tensor& slots, const Maybe& num_rejected,
      const Maybe& rope_positions, const Maybe& out_rope_positions, const Maybe& hidden_rows,
      int64_t padding_token_id, int64_t parallel_token_id) {
    checked_run(
        ExpandTensors{
            token_ids,
            positions,
            next_token_ids,
            query_start_loc,
            num_requests,
            block_tables,
            group_table,
            sampled_per_request,
            shift,
            max_model_len,
            out_token_ids,
            out_positions,
            rejected_mask,
            masked_mask,
            sample_indices,
            out_query_start_loc,
            lengths,
            next_positions,
            slots,
            num_rejected,
            rope_positions,
            out_rope_positions,
            hidden_rows,
            padding_token_id,
            parallel_token_id});
  }

  static void target_slots(
      const at::Tensor& positions, const at::Tensor& query_start_loc,
      const at::Tensor& num_requests, const Tensors& block_tables, const at::Tensor& group_table,
      const Tensors& slots, const at::Tensor& slot_table) {
    checked_run(
        TargetSlotTensors{
            positions, query_start_loc, num_requests, block_tables, group_table, slots,
            slot_table});
  }

  static void zero_blocks(
      const at::Tensor& block_ids, const Tensors& caches, const at::Tensor& page_table) {
    checked_run(ZeroTensors{block_ids, caches, page_table});
  }

  // Give one op of torch.ops.mkv_ascend its kernel for a device, for the life of the process.
  static void install(const std::string& name, c10::DispatchKey key) {
    static torch::Library library(torch::Library::IMPL, "mkv_ascend", key, __FILE__, __LINE__);
    if (name == "draft_plan") {
      library.impl("draft_plan", TORCH_FN(draft_plan));
    } else if (name == "expand_inputs") {
      library.impl("expand_inputs", TORCH_FN(expand_inputs));
    } else if (name == "target_slots") {
      library.impl("target_slots", TORCH_FN(target_slots));
    } else if (name == "zero_blocks") {
      library.impl("zero_blocks", TORCH_FN(zero_blocks));
    } else {
      TORCH_CHECK_VALUE(false, "there is no native kernel ", name);
    }
  }

  // The kernels as functions of a namespace of their own, for tests and for checks around them.
  static void define(torch::Library& library) {
    library.def("draft_plan", &draft_plan);
    library.def("expand_inputs", &expand_inputs);
    library.def("target_slots", &target_slots);
    library.def("zero_blocks", &zero_blocks);
  }

 private:
  template <typename Given>
  static void checked_run(const Given& given) {
    check(given);
    Kernels::run(given);
  }
};

}  // namespace mkv::ops
