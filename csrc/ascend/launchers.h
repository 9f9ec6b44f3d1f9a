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

// Arguments of expand_inputs. `wide_...` is 1 where the elements are int64; pointers may be null
// where an argument may be left out.
struct MkvExpandInputs {
  MkvAddress token_ids;
  MkvAddress positions;
  MkvAddress rope_positions;
  MkvAddress next_token_ids;
  MkvAddress query_start_loc;
  MkvAddress num_rejected;
  MkvAddress num_requests;
  MkvAddress group_table;
  MkvAddress out_token_ids;
  MkvAddress out_positions;
  MkvAddress out_rope_positions;
  MkvAddress rejected_mask;
  MkvAddress masked_mask;
  MkvAddress sample_indices;
  MkvAddress hidden_rows;
  MkvAddress out_query_start_loc;
  MkvAddress lengths;
  MkvAddress next_positions;
  MkvAddress slots;
  int64_t num_rows;
  int64_t num_tokens;
  int64_t num_out_tokens;
  int64_t num_groups;
  int64_t table_rows;  // as above
  int64_t num_axes;
  int64_t sampled;
  int64_t max_model_len;
  int64_t rope_stride;
  int64_t out_rope_stride;
  int64_t slot_stride;
  int32_t shift;
  int32_t padding_token_id;
  int32_t parallel_token_id;
  int32_t wide_token_ids;
  int32_t wide_positions;
  int32_t wide_rope_positions;
  int32_t wide_next_token_ids;
  int32_t wide_rejected;
  int32_t wide_out_positions;
  int32_t wide_out_rope_positions;
  int32_t wide_next_positions;
};

// Sampled rows of a request that one expand_inputs takes: what it divides by them must be small.
constexpr int64_t kMostSampledRows = 2048;

void mkv_ascend_expand_inputs(uint32_t cores, void* stream, const MkvExpandInputs* arguments);

}  // extern "C"

#endif  // MKV_ASCEND_ASCEND_LAUNCHERS_H_
