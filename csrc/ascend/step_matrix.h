// SPDX-License-Identifier: Apache-2.0
// A matrix [steps][lanes] in UB, of which the first rows go to each step's place in global memory.
#ifndef MKV_ASCEND_ASCEND_STEP_MATRIX_H_
#define MKV_ASCEND_ASCEND_STEP_MATRIX_H_

#include "common.h"

namespace mkv {

struct StepMatrix {
  int64_t steps;
  int64_t lanes;
  int64_t rows;
  int64_t stride;  // of steps in global memory, in elements
};

template <typename T>
__aicore__ inline void StoreSteps(
    const GlobalTensor<T>& to, const LocalTensor<T>& from, const StepMatrix& shape) {
  const int64_t bytes = shape.rows * static_cast<int64_t>(sizeof(T));
  const int64_t lane_bytes = shape.lanes * static_cast<int64_t>(sizeof(T));
  const int64_t skipped = (lane_bytes - RoundUp(bytes, kBlockBytes)) / kBlockBytes;
  const int64_t gap = shape.steps > 1 ? shape.stride * static_cast<int64_t>(sizeof(T)) - bytes : 0;
  DataCopyPad(
      to, from,
      DataCopyExtParams{
          static_cast<uint16_t>(shape.steps), static_cast<uint32_t>(bytes),
          static_cast<uint32_t>(skipped), static_cast<uint32_t>(gap), 0});
}

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_STEP_MATRIX_H_
