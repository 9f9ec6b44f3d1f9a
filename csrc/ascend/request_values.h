// SPDX-License-Identifier: Apache-2.0
// What expand_inputs writes once per request: filled by the scalar unit, stored in pieces.
#ifndef MKV_ASCEND_ASCEND_REQUEST_VALUES_H_
#define MKV_ASCEND_ASCEND_REQUEST_VALUES_H_

#include "common.h"
#include "launchers.h"

namespace mkv {

constexpr int64_t kRequestPiece = 256;

class RequestValues {
 public:
  __aicore__ inline void Init(TPipe& pipe, bool wide_positions) {
    wide_ = wide_positions;
    pipe.InitBuffer(end_buffer_, kRequestPiece * sizeof(int32_t));
    pipe.InitBuffer(length_buffer_, kRequestPiece * sizeof(int32_t));
    pipe.InitBuffer(position_buffer_, kRequestPiece * sizeof(int64_t));
    pipe.InitBuffer(sample_buffer_, kMostSampledRows * sizeof(int32_t));
    ends_ = end_buffer_.Get<int32_t>();
    lengths_ = length_buffer_.Get<int32_t>();
    positions_ = position_buffer_.Get<int32_t>();
    wide_positions_ = position_buffer_.Get<int64_t>();
    samples_ = sample_buffer_.Get<int32_t>();
  }

  __aicore__ inline void Set(int64_t place, int64_t out_end, int64_t length, int64_t position) {
    const auto at = static_cast<uint32_t>(place);
    ends_.SetValue(at, static_cast<int32_t>(out_end));
    lengths_.SetValue(at, static_cast<int32_t>(length));
    if (wide_) {
      wide_positions_.SetValue(at, position);
    } else {
      positions_.SetValue(at, static_cast<int32_t>(position));
    }
  }

  // first, first + step, ...
  __aicore__ inline void SetSampled(int64_t place, int64_t sampled, int64_t first, int64_t step) {
    for (int64_t index = 0; index < sampled; ++index) {
      samples_.SetValue(
          static_cast<uint32_t>(place * sampled + index),
          static_cast<int32_t>(first + index * step));
    }
  }

  // Stores the values of `count` requests; they may be set anew afterwards.
  __aicore__ inline void Store(const MkvExpandInputs& to, int64_t request, int64_t count) {
    Sync<HardEvent::S_MTE3>();
    StoreBytes(ends_, to.out_query_start_loc + (request + 1) * 4, count * 4);
    StoreBytes(lengths_, to.lengths + request * 4, count * 4);
    const int64_t width = wide_ ? 8 : 4;
    StoreBytes(positions_, to.next_positions + request * width, count * width);
    StoreBytes(samples_, to.sample_indices + request * to.sampled * 4, count * to.sampled * 4);
    Sync<HardEvent::MTE3_S>();
  }

 private:
  __aicore__ inline void StoreBytes(const LocalTensor<int32_t>& from, GM_ADDR to, int64_t bytes) {
    DataCopyPad(
        GlobalAt<int32_t>(to), from, DataCopyExtParams{1, static_cast<uint32_t>(bytes), 0, 0, 0});
  }

  TBuf<TPosition::VECOUT> end_buffer_;
  TBuf<TPosition::VECOUT> length_buffer_;
  TBuf<TPosition::VECOUT> position_buffer_;
  TBuf<TPosition::VECOUT> sample_buffer_;
  LocalTensor<int32_t> ends_, lengths_, positions_, samples_;
  LocalTensor<int64_t> wide_positions_;
  bool wide_ = false;
};

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_REQUEST_VALUES_H_
