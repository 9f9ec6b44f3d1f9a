// SPDX-License-Identifier: Apache-2.0
// Positions of 32 or 64 bits as 32-bit vectors, exact for every value.
#ifndef MKV_ASCEND_ASCEND_POSITIONS_H_
#define MKV_ASCEND_ASCEND_POSITIONS_H_

#include "common.h"

namespace mkv {

// Stands for a position that no sequence has, with room to add steps to it.
constexpr int32_t kDead = -0x40000000;

// fits[i] = live[i] where the 64-bit value of `words` fits 32 bits, else 0; lower[i] = its lower
// word, valid where fits[i] is 1. Cast is not used: what it makes of other values is not
// documented.
__aicore__ inline void SplitWords(
    const LocalTensor<int32_t>& lower, const LocalTensor<int32_t>& fits,
    const LocalTensor<int32_t>& words, const LocalTensor<int32_t>& index,
    const LocalTensor<int32_t>& live, const LocalTensor<int32_t>& upper, int32_t lanes) {
  const LocalTensor<int32_t> offsets = fits;
  Muls(offsets, index, 8, lanes);
  PipeBarrier<PIPE_V>();
  const LocalTensor<uint32_t> places = offsets.ReinterpretCast<uint32_t>();
  Gather(lower, words, places, 0, static_cast<uint32_t>(lanes));
  Gather(upper, words, places, 4, static_cast<uint32_t>(lanes));
  PipeBarrier<PIPE_V>();
  // The upper word must repeat the lower one's sign.
  ShiftRight(fits, lower, 31, lanes);
  PipeBarrier<PIPE_V>();
  Sub(upper, upper, fits, lanes);
  PipeBarrier<PIPE_V>();
  Mins(upper, upper, 1, lanes);
  PipeBarrier<PIPE_V>();
  Maxs(upper, upper, -1, lanes);
  PipeBarrier<PIPE_V>();
  // 1 where it does not.
  Mul(upper, upper, upper, lanes);
  PipeBarrier<PIPE_V>();
  Muls(upper, upper, -1, lanes);
  PipeBarrier<PIPE_V>();
  Adds(upper, upper, 1, lanes);
  PipeBarrier<PIPE_V>();
  Mul(fits, upper, live, lanes);
  PipeBarrier<PIPE_V>();
}

// position[i] = given[i] as int32; kDead where live[i] is 0 or the value does not fit. `index`
// holds 0, 1, 2, ...; what lies in `given` behind the live lanes does not matter.
template <typename Position>
__aicore__ inline void NarrowPositions(
    const LocalTensor<int32_t>& position, const LocalTensor<Position>& given,
    const LocalTensor<int32_t>& index, const LocalTensor<int32_t>& live,
    const LocalTensor<int32_t>& fits, const LocalTensor<int32_t>& scratch, int32_t lanes) {
  if constexpr (sizeof(Position) == sizeof(int64_t)) {
    SplitWords(
        position, fits, given.template ReinterpretCast<int32_t>(), index, live, scratch, lanes);
    Mul(position, position, fits, lanes);
  } else {
    Adds(fits, live, 0, lanes);
    Mul(position, given, live, lanes);
  }
  PipeBarrier<PIPE_V>();
  Adds(fits, fits, -1, lanes);
  PipeBarrier<PIPE_V>();
  Muls(fits, fits, -kDead, lanes);
  PipeBarrier<PIPE_V>();
  Add(position, position, fits, lanes);
  PipeBarrier<PIPE_V>();
}

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_POSITIONS_H_
