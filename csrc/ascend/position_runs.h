// SPDX-License-Identifier: Apache-2.0
// Runs of positions: neighbouring tokens of one request whose positions follow each other. The
// vector pipe finds where they begin; the scalar unit looks at each request and each run, not at
// each token.
#ifndef MKV_ASCEND_ASCEND_POSITION_RUNS_H_
#define MKV_ASCEND_ASCEND_POSITION_RUNS_H_

#include "common.h"

namespace mkv {

// Tokens of a tile. DivideNear holds for a run of so many.
constexpr int64_t kMostLanes = kNear;
// Lanes of zeros before the first lane, for the longest step back.
constexpr int64_t kPad = kMostLanes / 2;
constexpr int32_t kWord = sizeof(int32_t);

// Lanes [lane, lane + count) hold one request's positions from `position` on, one by one.
struct PositionRun {
  int32_t request;
  int32_t lane;
  int32_t count;
  int32_t position;
};

// The lane of a request's first token; of the tile's first request, lane 0.
struct FirstToken {
  int32_t request;
  int32_t lane;
};

class PositionRuns {
 public:
  // `starts` says where requests begin, the end of the last one behind them.
  __aicore__ inline void Init(
      TPipe& pipe, const GlobalTensor<int32_t>& starts, int64_t requests, int32_t lanes) {
    starts_ = starts;
    requests_ = requests;
    lanes_ = lanes;
    pipe.InitBuffer(buffer_, (kPad + lanes) * sizeof(int32_t));
    padded_ = buffer_.Get<int32_t>();
    beginnings_ = padded_[kPad];
  }

  // A barrier must follow.
  __aicore__ inline void Clear() {
    Duplicate(padded_, 0, static_cast<int32_t>(kPad));
  }

  // Finds the request of a token, of `tokens` in all: the last that does not begin behind it.
  __aicore__ inline void Seek(int64_t token, int64_t tokens) {
    // Where requests are of one length this is it; else the steps double until they are past it.
    int64_t low = token * requests_ / tokens;
    int64_t high = low + 1;
    for (int64_t step = 1; low > 0 && BeginsBehind(low, token); step *= 2) {
      high = low;
      low = Most(0, low - step);
    }
    for (int64_t step = 1; high < requests_ && !BeginsBehind(high, token); step *= 2) {
      low = high;
      high = Least(requests_, high + step);
    }
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (BeginsBehind(middle, token)) {
        high = middle;
      } else {
        low = middle;
      }
    }
    request_ = low;
  }

  // The runs of the next tile: tokens [start, start + tile), whose positions lie in `padded` after
  // 32 bytes of anything. `index` holds 0, 1, 2, ... and `index_bytes` four times that. The scalar
  // unit must be done with the tile before.
  __aicore__ inline void Find(
      const LocalTensor<int32_t>& padded, const LocalTensor<int32_t>& index,
      const LocalTensor<int32_t>& index_bytes, const LocalTensor<int32_t>& scratch, int64_t start,
      int64_t tile) {
    const LocalTensor<uint32_t> places = index_bytes.ReinterpretCast<uint32_t>();
    const LocalTensor<int32_t> position = padded[kTileRows];
    start_ = start;
    tile_ = tile;
    MarkBreaks(padded, position, index, places, scratch);
    Sync<HardEvent::V_S>();
    MarkRequests();
    Sync<HardEvent::S_V>();
    // Each lane takes the last beginning at or before it.
    for (int64_t step = 1; step < tile_; step *= 2) {
      const uint32_t back = static_cast<uint32_t>((kPad - step) * kWord);
      Gather(scratch, padded_, places, back, static_cast<uint32_t>(lanes_));
      PipeBarrier<PIPE_V>();
      Max(beginnings_, beginnings_, scratch, lanes_);
      PipeBarrier<PIPE_V>();
    }
    Sync<HardEvent::V_S>();
    List(position);
  }

  // The lane that each lane's run begins at.
  __aicore__ inline const LocalTensor<int32_t>& beginnings() const {
    return beginnings_;
  }

  __aicore__ inline int64_t count() const {
    return count_;
  }

  // From the tile's last run to its first.
  __aicore__ inline PositionRun Get(int64_t place) const {
    return runs_[place];
  }

 private:
  // beginnings_ = the lane where its position is not one more than the lane before has, else 0.
  // What lies before the first lane does not matter: times index 0 it is 0.
  __aicore__ inline void MarkBreaks(
      const LocalTensor<int32_t>& padded, const LocalTensor<int32_t>& position,
      const LocalTensor<int32_t>& index, const LocalTensor<uint32_t>& places,
      const LocalTensor<int32_t>& scratch) {
    Gather(scratch, padded, places, (kTileRows - 1) * kWord, static_cast<uint32_t>(lanes_));
    PipeBarrier<PIPE_V>();
    Sub(scratch, position, scratch, lanes_);
    PipeBarrier<PIPE_V>();
    Adds(scratch, scratch, -1, lanes_);
    PipeBarrier<PIPE_V>();
    Mins(scratch, scratch, 1, lanes_);
    PipeBarrier<PIPE_V>();
    Maxs(scratch, scratch, -1, lanes_);
    PipeBarrier<PIPE_V>();
    Mul(scratch, scratch, scratch, lanes_);
    PipeBarrier<PIPE_V>();
    Mul(beginnings_, scratch, index, lanes_);
  }

  // A request's first token begins a run too. Moves request_ on to that of the tile's last token.
  __aicore__ inline void MarkRequests() {
    last_first_ = 0;
    firsts_[0] = {static_cast<int32_t>(request_), 0};
    while (request_ + 1 < requests_) {
      const int64_t begin = starts_.GetValue(request_ + 1);
      if (begin >= start_ + tile_) {
        break;
      }
      ++request_;
      const int32_t lane = static_cast<int32_t>(Most(0, begin - start_));
      // Of requests that begin at one token all but the last are empty.
      if (lane > firsts_[last_first_].lane) {
        ++last_first_;
        beginnings_.SetValue(static_cast<uint32_t>(lane), lane);
      }
      firsts_[last_first_] = {static_cast<int32_t>(request_), lane};
    }
  }

  __aicore__ inline void List(const LocalTensor<int32_t>& position) {
    int64_t first = last_first_;
    count_ = 0;
    for (int64_t end = tile_; end > 0;) {
      const int32_t lane = beginnings_.GetValue(static_cast<uint32_t>(end - 1));
      while (firsts_[first].lane > lane) {
        --first;
      }
      runs_[count_] = {
          firsts_[first].request, lane, static_cast<int32_t>(end - lane),
          position.GetValue(static_cast<uint32_t>(lane))};
      ++count_;
      end = lane;
    }
  }

  __aicore__ inline bool BeginsBehind(int64_t request, int64_t token) const {
    return starts_.GetValue(request) > token;
  }

  TBuf<TPosition::VECCALC> buffer_;
  LocalTensor<int32_t> padded_, beginnings_;
  GlobalTensor<int32_t> starts_;
  int64_t requests_;
  int32_t lanes_;
  int64_t request_;  // of the last token looked at
  // Of the tile in hand.
  int64_t start_;
  int64_t tile_;
  int64_t last_first_;
  FirstToken firsts_[kMostLanes];
  int64_t count_;
  PositionRun runs_[kMostLanes];
};

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_POSITION_RUNS_H_
