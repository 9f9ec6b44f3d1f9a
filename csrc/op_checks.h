// SPDX-License-Identifier: Apache-2.0
// What each op takes, checked before its kernels run.
#pragma once

#include "op_arguments.h"

namespace mkv::ops {

inline Dtypes same(const at::Tensor& tensor) {
  return {tensor.scalar_type(), tensor.scalar_type()};
}

// 0 where there is no tensor.
inline int64_t rows_of(const Maybe& tensor) {
  return tensor.has_value() ? tensor->size(0) : 0;
}

// One argument against what its list says.
template <typename Given, typename... Sizes>
void check_argument(
    Arguments& arguments, const char* name, const Given& given, Dtypes dtypes, Sizes... sizes) {
  arguments.tensor(name, given, dtypes, {static_cast<int64_t>(sizes)...});
}

template <typename... Sizes>
void check_argument(
    Arguments& arguments, const char* name, const Tensors& given, Dtypes dtypes, Sizes... sizes) {
  for (size_t index = 0; index < given.size(); ++index) {
    check_argument(arguments, Arguments::item(name, index).c_str(), given[index], dtypes, sizes...);
  }
}

// Of which it says nothing: numbers, and what is checked by hand.
template <typename Given>
void check_argument(Arguments& /*arguments*/, const char* /*name*/, const Given& /*given*/) {}

#define MKV_CHECK(kind, name, ...) \
  check_argument(arguments, #name, given.name __VA_OPT__(, ) __VA_ARGS__);

inline void check(const DraftPlanTensors& given) {
  Arguments arguments("draft_plan");
  arguments.tables(given.block_tables);
  arguments.model_length(given.max_model_len);
  MKV_DRAFT_PLAN(MKV_CHECK)
}

inline void check(const ExpandTensors& given) {
  Arguments arguments("expand_inputs");
  arguments.require(
      given.sampled_per_request >= 1, "sampled_per_request is ", given.sampled_per_request,
      "; it must be 1 or more");
  arguments.model_length(given.max_model_len);
  arguments.tables(given.block_tables);
  arguments.require(
      given.rope_positions.has_value() == given.out_rope_positions.has_value(),
      "rope_positions and out_rope_positions must be given together or not at all");
  MKV_EXPAND_INPUTS(MKV_CHECK)
}

inline void check(const TargetSlotTensors& given) {
  Arguments arguments("target_slots");
  arguments.tables(given.block_tables);
  arguments.require(
      given.slots.size() == given.block_tables.size(), "slots holds ", given.slots.size(),
      " tensors for ", given.block_tables.size(), " block_tables");
  MKV_TARGET_SLOTS(MKV_CHECK)
  arguments.require(
      given.query_start_loc.size(0) > 0, "query_start_loc is empty; it must be requests + 1 long");
}

inline void check(const ZeroTensors& given) {
  Arguments arguments("zero_blocks");
  MKV_ZERO_BLOCKS(MKV_CHECK)
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

#undef MKV_CHECK

}  // namespace mkv::ops
