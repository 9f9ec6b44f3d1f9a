// SPDX-License-Identifier: Apache-2.0
// Vectors of int32 in UB, worked on one step after the other.
#ifndef MKV_ASCEND_ASCEND_LANES_H_
#define MKV_ASCEND_ASCEND_LANES_H_

#include "common.h"

namespace mkv {

using Vector = LocalTensor<int32_t>;

// Gives out UB for the life of a kernel.
class Memory {
 public:
  __aicore__ inline explicit Memory(TPipe* pipe) : pipe_(pipe) {}

  __aicore__ inline Vector Words(int64_t count) {
    TBuf<TPosition::VECIN>& buffer = buffers_[used_++];
    pipe_->InitBuffer(buffer, static_cast<uint32_t>(count * sizeof(int32_t)));
    return buffer.Get<int32_t>();
  }

 private:
  TPipe* pipe_;
  TBuf<TPosition::VECIN> buffers_[48];
  int used_ = 0;
};

// The first `count` lanes of vectors. Each step waits for the one before.
class Lanes {
 public:
  __aicore__ inline explicit Lanes(int64_t count) : count_(static_cast<int32_t>(count)) {}

  __aicore__ inline int32_t count() const {
    return count_;
  }

  __aicore__ inline void Fill(const Vector& to, int64_t value) const {
    Duplicate(to, static_cast<int32_t>(value), count_);
    PipeBarrier<PIPE_V>();
  }
  __aicore__ inline void Adds(const Vector& to, const Vector& from, int64_t value) const {
    AscendC::Adds(to, from, static_cast<int32_t>(value), count_);
    PipeBarrier<PIPE_V>();
  }
  __aicore__ inline void Muls(const Vector& to, const Vector& from, int64_t value) const {
    AscendC::Muls(to, from, static_cast<int32_t>(value), count_);
    PipeBarrier<PIPE_V>();
  }
  __aicore__ inline void Mins(const Vector& to, const Vector& from, int64_t value) const {
    AscendC::Mins(to, from, static_cast<int32_t>(value), count_);
    PipeBarrier<PIPE_V>();
  }
  __aicore__ inline void Maxs(const Vector& to, const Vector& from, int64_t value) const {
    AscendC::Maxs(to, from, static_cast<int32_t>(value), count_);
    PipeBarrier<PIPE_V>();
  }
  __aicore__ inline void Add(const Vector& to, const Vector& a, const Vector& b) const {
    AscendC::Add(to, a, b, count_);
    PipeBarrier<PIPE_V>();
  }
  __aicore__ inline void Sub(const Vector& to, const Vector& a, const Vector& b) const {
    AscendC::Sub(to, a, b, count_);
    PipeBarrier<PIPE_V>();
  }
  __aicore__ inline void Mul(const Vector& to, const Vector& a, const Vector& b) const {
    AscendC::Mul(to, a, b, count_);
    PipeBarrier<PIPE_V>();
  }

  // to[i] = the word of `table` at byte base + offsets[i].
  __aicore__ inline void Take(
      const Vector& to, const Vector& table, const Vector& offsets, int64_t base = 0) const {
    Gather(
        to, table, offsets.ReinterpretCast<uint32_t>(), static_cast<uint32_t>(base),
        static_cast<uint32_t>(count_));
    PipeBarrier<PIPE_V>();
  }

  // to[i] = 1 where from[i] >= bound, else 0; the two lie less than 2^31 apart.
  __aicore__ inline void Reached(const Vector& to, const Vector& from, int64_t bound) const {
    Adds(to, from, 1 - bound);
    Maxs(to, to, 0);
    Mins(to, to, 1);
  }

  // to[i] = from[i] / divisor for 0 <= from[i] < 2^21: the half keeps the product of rounded
  // numbers off whole ones. `to` may be `from`.
  __aicore__ inline void Divide(
      const Vector& to, const Vector& from, const Vector& scratch, int64_t divisor) const {
    const auto numbers = scratch.ReinterpretCast<float>();
    Cast(numbers, from, RoundMode::CAST_NONE, static_cast<uint32_t>(count_));
    PipeBarrier<PIPE_V>();
    AscendC::Adds(numbers, numbers, 0.5F, count_);
    PipeBarrier<PIPE_V>();
    AscendC::Muls(numbers, numbers, 1.0F / static_cast<float>(divisor), count_);
    PipeBarrier<PIPE_V>();
    Cast(to, numbers, RoundMode::CAST_FLOOR, static_cast<uint32_t>(count_));
    PipeBarrier<PIPE_V>();
  }

  // The lanes' values, 0 to 127, as bytes. A multiple of 8 lanes; `offsets` holds 0, 4, 8, ...
  __aicore__ inline void Narrow(
      const Vector& to, const Vector& from, const Vector& offsets, const Vector& scratch,
      const Vector& odd_scratch) const {
    const auto halves = scratch.ReinterpretCast<int16_t>();
    const auto pairs = to.ReinterpretCast<int16_t>();
    const auto odd = odd_scratch.ReinterpretCast<int16_t>();
    const auto places = offsets.ReinterpretCast<uint32_t>();
    const auto count = static_cast<uint32_t>(count_) / 2;
    Cast(halves, from, RoundMode::CAST_NONE, static_cast<uint32_t>(count_));
    PipeBarrier<PIPE_V>();
    Gather(pairs, halves, places, 0, count);
    Gather(odd, halves, places, sizeof(int16_t), count);
    PipeBarrier<PIPE_V>();
    AscendC::Muls(odd, odd, static_cast<int16_t>(256), static_cast<int32_t>(count));
    PipeBarrier<PIPE_V>();
    AscendC::Add(pairs, pairs, odd, static_cast<int32_t>(count));
    PipeBarrier<PIPE_V>();
  }

  // int64 with the value of each lane.
  __aicore__ inline void Widen(const Vector& to, const Vector& from) const {
    Cast(to.ReinterpretCast<int64_t>(), from, RoundMode::CAST_NONE, static_cast<uint32_t>(count_));
    PipeBarrier<PIPE_V>();
  }

 private:
  int32_t count_;
};

__aicore__ inline void Load(const Vector& to, GM_ADDR from, int64_t bytes) {
  DataCopyPad(
      to.ReinterpretCast<uint8_t>(), GlobalAt<uint8_t>(from),
      DataCopyExtParams{1, static_cast<uint32_t>(bytes), 0, 0, 0},
      DataCopyPadExtParams<uint8_t>{false, 0, 0, 0});
}

__aicore__ inline void Store(GM_ADDR to, const Vector& from, int64_t bytes) {
  DataCopyPad(
      GlobalAt<uint8_t>(to), from.ReinterpretCast<uint8_t>(),
      DataCopyExtParams{1, static_cast<uint32_t>(bytes), 0, 0, 0});
}

__aicore__ inline int64_t Between(int64_t value, int64_t low, int64_t high) {
  return Most(low, Least(value, high));
}

// Sums of a vector's lanes from the first up to each, in log(lanes) steps.
class RunningSum {
 public:
  __aicore__ inline void Init(Memory& memory, const Vector& bytes, int64_t most_lanes) {
    bytes_ = bytes;
    zeros_ = most_lanes / 2;
    first_ = memory.Words(zeros_ + most_lanes);
    second_ = memory.Words(zeros_ + most_lanes);
    const Lanes before(zeros_);
    before.Fill(first_, 0);
    before.Fill(second_, 0);
  }

  // A vector of zeros; the scalar unit may set lanes of it after V_S, with S_V behind.
  __aicore__ inline Vector Start(const Lanes& lanes) const {
    const Vector values = first_[static_cast<uint32_t>(zeros_)];
    lanes.Fill(values, 0);
    return values;
  }

  // to[i] = the sum of lanes 0 to i of what Start() returned.
  __aicore__ inline void Finish(const Lanes& lanes, const Vector& to) const {
    const auto begin = static_cast<uint32_t>(zeros_);
    Vector from = first_;
    Vector next = second_;
    for (int64_t step = 1; step < lanes.count(); step *= 2) {
      // Vectors begin on 32 bytes: shorter steps are gathered.
      if (step < kTileRows) {
        lanes.Take(next[begin], from, bytes_, (zeros_ - step) * 4);
        lanes.Add(next[begin], next[begin], from[begin]);
      } else {
        lanes.Add(next[begin], from[begin], from[static_cast<uint32_t>(zeros_ - step)]);
      }
      const Vector done = next;
      next = from;
      from = done;
    }
    lanes.Adds(to, from[begin], 0);
  }

 private:
  Vector bytes_, first_, second_;
  int64_t zeros_ = 0;
};

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_LANES_H_
