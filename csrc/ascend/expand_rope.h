// SPDX-License-Identifier: Apache-2.0
// Positions for rotary embedding of a tile of expand_inputs, several axes at once.
#ifndef MKV_ASCEND_ASCEND_EXPAND_ROPE_H_
#define MKV_ASCEND_ASCEND_EXPAND_ROPE_H_

#include "expand_tile.h"

namespace mkv {

constexpr int64_t kMostAxes = 4;
// Words of an axis: that of the first request's last kept token, alone, and the tile's inputs.
constexpr int64_t kAxisWords = kTileRows + 2 * kInputLanes;

class TileRope {
 public:
  __aicore__ inline void Init(Memory& memory, const Vector& index, const Vector& bytes) {
    index_ = index;
    bytes_ = bytes;
    given_ = memory.Words(kMostAxes * kAxisWords);
    beyond_ = memory.Words(kTileLanes);
    source_ = memory.Words(kTileLanes);
    values_ = memory.Words(kTileLanes);
    out_ = memory.Words(kMostAxes * 2 * kTileLanes);
  }

  // Loads axes from `first` on. After TileRequests::LoadGiven.
  __aicore__ inline void Fetch(
      const Expansion& all, const Tile& tile, const TileRequests& requests, int64_t first) {
    const MkvExpandInputs& in = all.in;
    first_ = first;
    count_ = Least(in.num_axes - first, kMostAxes);
    if (tile.requests == 0) {
      return;
    }
    Sync<HardEvent::MTE2_S>();
    const int64_t width = in.wide_rope_positions != 0 ? 8 : 4;
    const int64_t last = tile.start + requests.KeptOfFirst(all) - 1;
    for (int64_t index = 0; index < count_; ++index) {
      const auto to = given_[static_cast<uint32_t>(index * kAxisWords)];
      GM_ADDR from = in.rope_positions + (first_ + index) * in.rope_stride * width;
      if (tile.inputs > 0) {
        Load(to[kTileRows], from + tile.input * width, tile.inputs * width);
      }
      // Rows behind the kept ones count on from the last, which may lie before the tile.
      if (last < tile.input) {
        const auto left = static_cast<uint8_t>(kBlockBytes - width);
        DataCopyPad(
            to.ReinterpretCast<uint8_t>(), GlobalAt<uint8_t>(from + last * width),
            DataCopyExtParams{1, static_cast<uint32_t>(width), 0, 0, 0},
            DataCopyPadExtParams<uint8_t>{true, left, 0, 0});
      }
    }
  }

  // Computes and stores the axes that were fetched; arguments as in TileSlots::Write.
  __aicore__ inline void Write(
      const Expansion& all, const Tile& tile, const TileRequests& requests, const Vector& written,
      const Vector& bytes) {
    const MkvExpandInputs& in = all.in;
    Sync<HardEvent::MTE2_V>();
    const Lanes lanes(tile.lanes);
    FindSources(all, tile, requests, bytes);
    const int64_t width = in.wide_rope_positions != 0 ? 8 : 4;
    for (int64_t index = 0; index < count_; ++index) {
      const auto out = out_[static_cast<uint32_t>(index * 2 * kTileLanes)];
      const Vector values = in.wide_out_rope_positions != 0 ? values_ : out;
      const auto given = given_[static_cast<uint32_t>(index * kAxisWords)];
      lanes.Take(values, given, source_, kBlockBytes - width);
      lanes.Add(values, values, beyond_);
      lanes.Mul(values, values, written);
      if (in.wide_out_rope_positions != 0) {
        lanes.Widen(out, values);
      }
    }
    Sync<HardEvent::V_MTE3>();
    const int64_t out_width = in.wide_out_rope_positions != 0 ? 8 : 4;
    const int64_t rows = Least(tile.rows, in.num_out_tokens - tile.row);
    for (int64_t index = 0; index < count_ && rows > 0; ++index) {
      const int64_t to = (first_ + index) * in.out_rope_stride + tile.row;
      Store(
          in.out_rope_positions + to * out_width,
          out_[static_cast<uint32_t>(index * 2 * kTileLanes)], rows * out_width);
    }
  }

  // The axis behind those that were written; what they used may be used anew.
  __aicore__ inline int64_t Next() const {
    Sync<HardEvent::V_MTE2>();
    Sync<HardEvent::MTE3_V>();
    return first_ + count_;
  }

 private:
  // beyond_: how far a row lies behind its request's last kept token; source_: the byte of the
  // input row that it takes, the one before the tile's being the first.
  __aicore__ inline void FindSources(
      const Expansion& all, const Tile& tile, const TileRequests& requests, const Vector& bytes) {
    const Lanes lanes(tile.lanes);
    lanes.Take(beyond_, requests.next_rows, bytes);
    lanes.Sub(beyond_, index_, beyond_);
    lanes.Adds(beyond_, beyond_, 1 - all.in.shift);
    lanes.Maxs(beyond_, beyond_, 0);
    lanes.Muls(source_, bytes, -all.more);
    lanes.Add(source_, source_, bytes_);
    lanes.Adds(source_, source_, (tile.row - tile.request * all.more - tile.input + 1) * 4);
    lanes.Muls(values_, beyond_, -4);
    lanes.Add(source_, source_, values_);
    lanes.Maxs(source_, source_, 0);
    if (all.in.wide_rope_positions != 0) {
      lanes.Muls(source_, source_, 2);
    }
  }

  Vector index_, bytes_, given_, beyond_, source_, values_, out_;
  int64_t first_ = 0;
  int64_t count_ = 0;
};

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_EXPAND_ROPE_H_
