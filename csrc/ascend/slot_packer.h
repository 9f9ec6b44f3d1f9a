// SPDX-License-Identifier: Apache-2.0
// Slots of few rows, packed: where a step has less than 32 bytes of slots per group, storing each
// alone moves up to eight times as much as storing all of them together.
#ifndef MKV_ASCEND_ASCEND_SLOT_PACKER_H_
#define MKV_ASCEND_ASCEND_SLOT_PACKER_H_

#include "common.h"

namespace mkv {

// Takes matrices [steps][8] of all groups, gives [steps][groups][rows] without gaps.
class SlotPacker {
 public:
  // Whether it serves so many.
  __aicore__ static inline bool Packs(int64_t rows, int64_t steps, int64_t groups) {
    return rows < kTileRows && rows * steps * groups <= kNear;
  }

  __aicore__ inline void Init(TPipe& pipe, int64_t rows, int64_t steps, int64_t groups) {
    rows_ = rows;
    steps_ = steps;
    groups_ = groups;
    cells_ = static_cast<int32_t>(rows * steps * groups);
    lanes_ = static_cast<int32_t>(RoundUp(cells_, kTileRows));
    pipe.InitBuffer(slot_buffer_, groups * MatrixBytes());
    pipe.InitBuffer(place_buffer_, 3 * lanes_ * sizeof(int32_t));
    slots_ = slot_buffer_.Get<int32_t>();
    places_ = place_buffer_.Get<int32_t>();
    rest_ = places_[lanes_];
    quotient_ = places_[2 * lanes_];
  }

  // Finds where the matrices hold what comes to each place. A barrier must follow.
  __aicore__ inline void Prepare() {
    const int64_t step_cells = groups_ * rows_;
    CreateVecIndex(rest_, 0, static_cast<uint32_t>(lanes_));
    PipeBarrier<PIPE_V>();
    Split(step_cells);
    // A step later is 32 bytes further, a group later a matrix, a row later a word.
    Muls(places_, quotient_, static_cast<int32_t>(kBlockBytes), lanes_);
    PipeBarrier<PIPE_V>();
    Split(rows_);
    Muls(quotient_, quotient_, static_cast<int32_t>(MatrixBytes()), lanes_);
    Muls(rest_, rest_, static_cast<int32_t>(sizeof(int32_t)), lanes_);
    PipeBarrier<PIPE_V>();
    Add(places_, places_, quotient_, lanes_);
    PipeBarrier<PIPE_V>();
    Add(places_, places_, rest_, lanes_);
  }

  // A group's matrix, to be written by the vector pipe.
  __aicore__ inline LocalTensor<int32_t> SlotsOf(int64_t group) const {
    return slots_[static_cast<uint32_t>(group * steps_ * kTileRows)];
  }

  // What packed slots take of UB.
  __aicore__ inline int64_t Bytes() const {
    return cells_ * static_cast<int64_t>(sizeof(int32_t));
  }

  // All groups' slots side by side, through a buffer of the queue. A barrier has to stand before
  // it.
  template <typename Queue>
  __aicore__ inline void Store(const GlobalTensor<int32_t>& to, Queue& queue) const {
    LocalTensor<int32_t> packed = queue.template AllocTensor<int32_t>();
    const LocalTensor<uint32_t> places = places_.ReinterpretCast<uint32_t>();
    Gather(packed, slots_, places, 0, static_cast<uint32_t>(cells_));
    queue.EnQue(packed);
    packed = queue.template DeQue<int32_t>();
    DataCopyPad(to, packed, DataCopyExtParams{1, static_cast<uint32_t>(Bytes()), 0, 0, 0});
    queue.FreeTensor(packed);
  }

 private:
  __aicore__ inline uint32_t MatrixBytes() const {
    return static_cast<uint32_t>(steps_ * kBlockBytes);
  }

  // quotient_ = rest_ / divisor, rest_ = what is left.
  __aicore__ inline void Split(int64_t divisor) {
    DivideNear(quotient_, rest_, divisor, Exponent(divisor), lanes_);
    const LocalTensor<int32_t> product = slots_;
    Muls(product, quotient_, static_cast<int32_t>(divisor), lanes_);
    PipeBarrier<PIPE_V>();
    Sub(rest_, rest_, product, lanes_);
    PipeBarrier<PIPE_V>();
  }

  TBuf<TPosition::VECCALC> slot_buffer_, place_buffer_;
  LocalTensor<int32_t> slots_, places_, rest_, quotient_;
  int64_t rows_;
  int64_t steps_;
  int64_t groups_;
  int32_t cells_;
  int32_t lanes_;
};

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_SLOT_PACKER_H_
