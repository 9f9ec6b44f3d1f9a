// SPDX-License-Identifier: Apache-2.0
// The functions that launch this folder's kernels, for the binding. `cores` is how many vector
// cores there are; a launch takes as many as it has work for. `stream` is an aclrtStream. Strides
// count elements. What the arguments mean is said in mkv_ascend/ops; that they fit is checked
// there.
#ifndef MKV_ASCEND_ASCEND_LAUNCHERS_H_
#define MKV_ASCEND_ASCEND_LAUNCHERS_H_

#include <cstdint>

// A device address: for kernels, in the address space of global memory.
#ifdef GM_ADDR
using MkvAddress = GM_ADDR;
#else
using MkvAddress = uint8_t*;
#endif

extern "C" {

// Steps that one draft_plan can plan: bounded by the unified buffer.
constexpr int64_t kMostPlannedSteps = 128;

// `table_rows` is the least number of rows of all block tables: rows from there on have no slots.
void mkv_ascend_draft_plan(
    uint32_t cores, void* stream, uint8_t* positions, uint8_t* num_requests, uint8_t* group_table,
    uint8_t* step_positions, uint8_t* lengths, uint8_t* slots, int32_t wide, int64_t rows,
    int64_t steps, int64_t groups, int64_t table_rows, int64_t max_model_len,
    int64_t position_stride, int64_t length_stride, int64_t slot_step_stride,
    int64_t slot_group_stride);

// `rows` is one less than query_start_loc has elements, `most_slots` the size of the longest
// output, `table_rows` as above.
void mkv_ascend_target_slots(
    uint32_t cores, void* stream, uint8_t* positions, uint8_t* query_start_loc,
    uint8_t* num_requests, uint8_t* group_table, uint8_t* slot_table, int32_t wide, int64_t tokens,
    int64_t rows, int64_t groups, int64_t table_rows, int64_t most_slots);

void mkv_ascend_zero_blocks(
    uint32_t cores, void* stream, uint8_t* block_ids, int32_t wide, int64_t num_ids,
    uint8_t* page_table, int64_t num_caches);

// The arguments of expand_inputs' kernel, listed once. Pointers may be null where an argument may
// be left out; wide_... is 1 where the elements are int64.
// clang-format off
#define MKV_EXPAND_INPUTS_WORDS(ADDRESS, SIZE, WORD, WIDE)                                      \
  ADDRESS(token_ids) ADDRESS(positions) ADDRESS(rope_positions) ADDRESS(next_token_ids)         \
  ADDRESS(query_start_loc) ADDRESS(num_rejected) ADDRESS(num_requests) ADDRESS(group_table)     \
  ADDRESS(out_token_ids) ADDRESS(out_positions) ADDRESS(out_rope_positions)                     \
  ADDRESS(rejected_mask) ADDRESS(masked_mask) ADDRESS(sample_indices) ADDRESS(hidden_rows)      \
  ADDRESS(out_query_start_loc) ADDRESS(lengths) ADDRESS(next_positions) ADDRESS(slots)          \
  SIZE(num_rows) SIZE(num_tokens) SIZE(num_out_tokens) SIZE(num_groups) SIZE(table_rows)        \
  SIZE(num_axes) SIZE(sampled) SIZE(max_model_len) SIZE(rope_stride) SIZE(out_rope_stride)      \
  SIZE(slot_stride)                                                                             \
  WORD(shift) WORD(padding_token_id) WORD(parallel_token_id)                                    \
  WIDE(token_ids) WIDE(positions) WIDE(rope_positions) WIDE(next_token_ids) WIDE(num_rejected)  \
  WIDE(out_positions) WIDE(out_rope_positions) WIDE(next_positions)
// clang-format on

#define MKV_ADDRESS_MEMBER(name) MkvAddress name;
#define MKV_SIZE_MEMBER(name) int64_t name;
#define MKV_WORD_MEMBER(name) int32_t name;
#define MKV_WIDE_MEMBER(name) int32_t wide_##name;
struct MkvExpandInputs {
  MKV_EXPAND_INPUTS_WORDS(MKV_ADDRESS_MEMBER, MKV_SIZE_MEMBER, MKV_WORD_MEMBER, MKV_WIDE_MEMBER)
};
#undef MKV_ADDRESS_MEMBER
#undef MKV_SIZE_MEMBER
#undef MKV_WORD_MEMBER
#undef MKV_WIDE_MEMBER

// Sampled rows of a request that one expand_inputs takes: what it divides by them must be small.
constexpr int64_t kMostSampledRows = 2048;

void mkv_ascend_expand_inputs(uint32_t cores, void* stream, const MkvExpandInputs* arguments);

}  // extern "C"

#endif  // MKV_ASCEND_ASCEND_LAUNCHERS_H_
