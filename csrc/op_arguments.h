// SPDX-License-Identifier: Apache-2.0
// The arguments of the ops, each listed once; what they mean is said in mkv_ascend/ops. From a list
// come the struct that carries an op's arguments, the C++ signature, the schema, the checks of
// dtypes and shapes, and the tensors that a kernel may touch.
//
// X(kind, name, dtypes, sizes...): a size may look at the arguments before it, in `given`.
#pragma once

#include "argument_checks.h"

#include <string>

#define MKV_DRAFT_PLAN(X)                                                             \
  X(Input, positions, kIndex, kAnySize)                                               \
  X(Input, num_requests, kInt32, 1)                                                   \
  X(Inputs, block_tables, kInt32, kAnySize, kAnySize)                                 \
  X(Input, group_table, kInt64, given.block_tables.size(), 4)                         \
  X(Number, max_model_len)                                                            \
  X(Output, step_positions, same(given.positions), kAnySize, given.positions.size(0)) \
  X(Output, lengths, kInt32, given.step_positions.size(0), given.positions.size(0))   \
  X(Output, slots, kInt32, given.step_positions.size(0), given.block_tables.size(),   \
    given.positions.size(0))

#define MKV_EXPAND_INPUTS(X)                                                                  \
  X(Input, token_ids, kIndex, kAnySize)                                                       \
  X(Input, positions, kIndex, given.token_ids.size(0))                                        \
  X(Input, next_token_ids, kIndex, kAnySize)                                                  \
  X(Input, query_start_loc, kInt32, given.next_token_ids.size(0) + 1)                         \
  X(Input, num_requests, kInt32, 1)                                                           \
  X(Inputs, block_tables, kInt32, kAnySize, kAnySize)                                         \
  X(Input, group_table, kInt64, given.block_tables.size(), 4)                                 \
  X(Number, sampled_per_request)                                                              \
  X(Flag, shift)                                                                              \
  X(Number, max_model_len)                                                                    \
  X(Output, out_token_ids, kInt32, kAnySize)                                                  \
  X(Output, out_positions, kIndex, given.out_token_ids.size(0))                               \
  X(Output, rejected_mask, kMask, given.out_token_ids.size(0))                                \
  X(Output, masked_mask, kMask, given.out_token_ids.size(0))                                  \
  X(Output, sample_indices, kInt32, given.next_token_ids.size(0) * given.sampled_per_request) \
  X(Output, out_query_start_loc, kInt32, given.next_token_ids.size(0) + 1)                    \
  X(Output, lengths, kInt32, given.next_token_ids.size(0))                                    \
  X(Output, next_positions, kIndex, given.next_token_ids.size(0))                             \
  X(Output, slots, kInt32, given.block_tables.size(), given.out_token_ids.size(0))            \
  X(MaybeInput, num_rejected, kIndex, given.next_token_ids.size(0))                           \
  X(MaybeInput, rope_positions, kIndex, kAnySize, given.token_ids.size(0))                    \
  X(MaybeOutput, out_rope_positions, kIndex, rows_of(given.rope_positions),                   \
    given.out_token_ids.size(0))                                                              \
  X(MaybeOutput, hidden_rows, kInt32, given.token_ids.size(0))                                \
  X(Number, padding_token_id)                                                                 \
  X(Number, parallel_token_id)

#define MKV_TARGET_SLOTS(X)                                   \
  X(Input, positions, kIndex, kAnySize)                       \
  X(Input, query_start_loc, kInt32, kAnySize)                 \
  X(Input, num_requests, kInt32, 1)                           \
  X(Inputs, block_tables, kInt32, kAnySize, kAnySize)         \
  X(Input, group_table, kInt64, given.block_tables.size(), 4) \
  X(Outputs, slots, kInt32, kAnySize)                         \
  X(Input, slot_table, kInt64, given.slots.size(), 2)

#define MKV_ZERO_BLOCKS(X)              \
  X(Input, block_ids, kIndex, kAnySize) \
  X(Outputs, caches)                    \
  X(Input, page_table, kInt64, given.caches.size(), 4)

// All ops: X(name, struct of the arguments, their list).
#define MKV_OPS(X)                                     \
  X(draft_plan, DraftPlanTensors, MKV_DRAFT_PLAN)      \
  X(expand_inputs, ExpandTensors, MKV_EXPAND_INPUTS)   \
  X(target_slots, TargetSlotTensors, MKV_TARGET_SLOTS) \
  X(zero_blocks, ZeroTensors, MKV_ZERO_BLOCKS)

namespace mkv::ops {

using Tensors = std::vector<at::Tensor>;
using Maybe = std::optional<at::Tensor>;

// Kinds of arguments: the C++ type, the schema's type, and whether the op writes it.
struct Input {
  using Type = const at::Tensor&;
  static constexpr const char* schema = "Tensor";
  static constexpr bool written = false;
};
struct Output {
  using Type = const at::Tensor&;
  static constexpr const char* schema = "Tensor";
  static constexpr bool written = true;
};
struct MaybeInput {
  using Type = const Maybe&;
  static constexpr const char* schema = "Tensor?";
  static constexpr bool written = false;
};
struct MaybeOutput {
  using Type = const Maybe&;
  static constexpr const char* schema = "Tensor?";
  static constexpr bool written = true;
};
struct Inputs {
  using Type = const Tensors&;
  static constexpr const char* schema = "Tensor[]";
  static constexpr bool written = false;
};
struct Outputs {
  using Type = const Tensors&;
  static constexpr const char* schema = "Tensor[]";
  static constexpr bool written = true;
};
struct Number {
  using Type = int64_t;
  static constexpr const char* schema = "int";
  static constexpr bool written = false;
};
struct Flag {
  using Type = bool;
  static constexpr const char* schema = "bool";
  static constexpr bool written = false;
};

#define MKV_MEMBER(kind, name, ...) kind::Type name;
#define MKV_STRUCT(op, Given, LIST) \
  struct Given {                    \
    LIST(MKV_MEMBER)                \
  };
MKV_OPS(MKV_STRUCT)
#undef MKV_STRUCT
#undef MKV_MEMBER

// An op's schema as PyTorch writes it, argument by argument.
class Schema {
 public:
  explicit Schema(const char* op) : text_(std::string(op) + "(") {}

  template <typename Kind>
  Schema& add(const char* name) {
    std::string type = Kind::schema;
    if (Kind::written) {
      // Each written argument is memory of its own.
      type.insert(std::string("Tensor").size(), std::string("(") + letter_++ + "!)");
    }
    text_ += (text_.back() == '(' ? "" : ", ") + type + " " + name;
    return *this;
  }

  std::string text() const {
    return text_ + ") -> ()";
  }

 private:
  std::string text_;
  char letter_ = 'a';
};

}  // namespace mkv::ops
