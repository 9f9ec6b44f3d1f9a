// SPDX-License-Identifier: Apache-2.0
// The functions that launch this folder's kernels, for the binding. `cores` is how many vector
// cores there are; a launch takes as many as it has work for. `stream` is an aclrtStream. Strides
// count elements. What the arguments mean is said in mkv_ascend/ops; that they fit is checked
// there.
#ifndef MKV_ASCEND_ASCEND_LAUNCHERS_H_
#define MKV_ASCEND_ASCEND_LAUNCHERS_H_

#include <cstdint>

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

}  // extern "C"

#endif  // MKV_ASCEND_ASCEND_LAUNCHERS_H_
