// SPDX-License-Identifier: Apache-2.0
// Runs of integers on their way to global memory, for expand_inputs.
#ifndef MKV_ASCEND_ASCEND_RUN_STORE_H_
#define MKV_ASCEND_ASCEND_RUN_STORE_H_

#include "common.h"
#include "launchers.h"

namespace mkv {

constexpr int64_t kPieceRows = 512;  // the longest run
constexpr int64_t kArenaBytes = 80 * 1024;
constexpr int kMostNoted = 64;

__aicore__ inline int64_t Between(int64_t value, int64_t low, int64_t high) {
  return Most(low, Least(value, high));
}

enum class Filler { kZero, kMinusOne, kPaddingToken, kParallelToken, kByteZero, kByteOne };

// A run is loaded, or made from 0, 1, 2, ... by one addition, in a part of UB of its own, and its
// store is noted. Noted stores are issued together, so that the loads of many runs are under way at
// once. Constant runs are stored from constants, at once.
class RunStore {
 public:
  __aicore__ inline void Init(TPipe& pipe, int32_t padding_token, int32_t parallel_token) {
    constexpr uint32_t run_bytes = kPieceRows * sizeof(int32_t);
    pipe.InitBuffer(arena_buffer_, kArenaBytes);
    pipe.InitBuffer(constant_buffer_, 6 * run_bytes);
    arena_ = arena_buffer_.Get<uint8_t>();
    const auto constants = constant_buffer_.Get<int32_t>();
    // Zeros are twice as long, for int64 and for bytes.
    zeros_ = constants;
    minus_ones_ = constants[2 * kPieceRows];
    padding_tokens_ = constants[3 * kPieceRows];
    parallel_tokens_ = constants[4 * kPieceRows];
    byte_ones_ = constants[5 * kPieceRows];
    constexpr auto length = static_cast<int32_t>(kPieceRows);
    Duplicate(zeros_, 0, 2 * length);
    Duplicate(minus_ones_, -1, length);
    Duplicate(padding_tokens_, padding_token, length);
    Duplicate(parallel_tokens_, parallel_token, length);
    Duplicate(byte_ones_, 0x01010101, length / 4);
    pipe.InitBuffer(index_buffer_, run_bytes);
    index_ = index_buffer_.Get<int32_t>();
    CreateVecIndex(index_, 0, static_cast<uint32_t>(kPieceRows));
    PipeBarrier<PIPE_V>();
    Sync<HardEvent::V_MTE3>();
  }

  // first, first + 1, ...
  __aicore__ inline void Sequence(int64_t first, int64_t count, GM_ADDR to, bool wide) {
    if (count <= 0) {
      return;
    }
    const auto length = static_cast<int32_t>(count);
    const auto place = Take(count, wide);
    const auto values = place.ReinterpretCast<int32_t>();
    Adds(values, index_, static_cast<int32_t>(first), length);
    if (wide) {
      PipeBarrier<PIPE_V>();
      const auto widened = Second(place, count).ReinterpretCast<int64_t>();
      Cast(widened, values, RoundMode::CAST_NONE, length);
      Note(widened.ReinterpretCast<uint8_t>(), count * 8, to);
    } else {
      Note(place, count * 4, to);
    }
  }

  // What is at `from`, narrowed or widened where the types differ.
  __aicore__ inline void Copy(GM_ADDR from, bool wide_from, int64_t count, GM_ADDR to, bool wide) {
    if (count <= 0) {
      return;
    }
    const bool cast = wide_from != wide;
    const auto place = Take(count, wide_from || cast);
    const auto bytes = static_cast<uint32_t>(count * (wide_from ? 8 : 4));
    DataCopyPad(
        place, GlobalAt<uint8_t>(from), DataCopyExtParams{1, bytes, 0, 0, 0},
        DataCopyPadExtParams<uint8_t>{false, 0, 0, 0});
    if (!cast) {
      Note(place, bytes, to);
      return;
    }
    Sync<HardEvent::MTE2_V>();
    const auto length = static_cast<int32_t>(count);
    const auto narrow = place.ReinterpretCast<int32_t>();
    const auto second = Second(place, wide_from ? 2 * count : count);
    if (wide_from) {
      const auto target = second.ReinterpretCast<int32_t>();
      Cast(target, place.ReinterpretCast<int64_t>(), RoundMode::CAST_NONE, length);
    } else {
      Cast(second.ReinterpretCast<int64_t>(), narrow, RoundMode::CAST_NONE, length);
    }
    Note(second, count * (wide ? 8 : 4), to);
  }

  __aicore__ inline void Fill(Filler value, int64_t count, GM_ADDR to, bool wide) {
    if (count <= 0) {
      return;
    }
    const bool bytes = value == Filler::kByteZero || value == Filler::kByteOne;
    Store(FillerOf(value), count * (bytes ? 1 : (wide ? 8 : 4)), to);
  }

  // Issues what was noted.
  __aicore__ inline void Flush() {
    if (noted_ > 0) {
      Sync<HardEvent::MTE2_MTE3>();
      Sync<HardEvent::V_MTE3>();
    }
    for (int index = 0; index < noted_; ++index) {
      Store(noted_from_[index], noted_bytes_[index], noted_to_[index]);
    }
    noted_ = 0;
  }

 private:
  // UB for `count` int32, and behind them for as many int64 where `both`. Sized so that either type
  // may come first.
  __aicore__ inline LocalTensor<uint8_t> Take(int64_t count, bool both) {
    const int64_t narrow = RoundUp(count * 4, kBlockBytes);
    const int64_t bytes = both ? narrow + RoundUp(count * 8, kBlockBytes) : narrow;
    if (used_ + bytes > kArenaBytes || noted_ == kMostNoted) {
      Flush();
    }
    if (used_ + bytes > kArenaBytes) {
      PipeBarrier<PIPE_ALL>();
      used_ = 0;
    }
    const auto place = arena_[static_cast<uint32_t>(used_)];
    used_ += bytes;
    return place;
  }

  // What lies behind `count` int32.
  static __aicore__ inline LocalTensor<uint8_t> Second(
      const LocalTensor<uint8_t>& place, int64_t count) {
    return place[static_cast<uint32_t>(RoundUp(count * 4, kBlockBytes))];
  }

  __aicore__ inline void Note(const LocalTensor<uint8_t>& from, int64_t bytes, GM_ADDR to) {
    noted_from_[noted_] = from;
    noted_bytes_[noted_] = bytes;
    noted_to_[noted_] = to;
    ++noted_;
  }

  __aicore__ inline void Store(const LocalTensor<uint8_t>& from, int64_t bytes, GM_ADDR to) {
    DataCopyPad(
        GlobalAt<uint8_t>(to), from, DataCopyExtParams{1, static_cast<uint32_t>(bytes), 0, 0, 0});
  }

  __aicore__ inline LocalTensor<uint8_t> FillerOf(Filler value) const {
    switch (value) {
      case Filler::kMinusOne:
        return minus_ones_.ReinterpretCast<uint8_t>();
      case Filler::kPaddingToken:
        return padding_tokens_.ReinterpretCast<uint8_t>();
      case Filler::kParallelToken:
        return parallel_tokens_.ReinterpretCast<uint8_t>();
      case Filler::kByteOne:
        return byte_ones_.ReinterpretCast<uint8_t>();
      default:
        return zeros_.ReinterpretCast<uint8_t>();
    }
  }

  TBuf<TPosition::VECIN> arena_buffer_;
  TBuf<TPosition::VECOUT> constant_buffer_;
  TBuf<TPosition::VECCALC> index_buffer_;
  LocalTensor<uint8_t> arena_;
  LocalTensor<int32_t> zeros_, minus_ones_, padding_tokens_, parallel_tokens_, byte_ones_, index_;
  LocalTensor<uint8_t> noted_from_[kMostNoted];
  int64_t noted_bytes_[kMostNoted];
  GM_ADDR noted_to_[kMostNoted];
  int noted_ = 0;
  int64_t used_ = 0;
};

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_RUN_STORE_H_
