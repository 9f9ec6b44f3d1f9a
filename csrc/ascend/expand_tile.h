// SPDX-License-Identifier: Apache-2.0
// The requests whose output rows a core of expand_inputs works on at once, as vectors.
#ifndef MKV_ASCEND_ASCEND_EXPAND_TILE_H_
#define MKV_ASCEND_ASCEND_EXPAND_TILE_H_

#include "lanes.h"
#include "launchers.h"

namespace mkv {

// Output rows of a tile. Every request has a row of its own, so it has no more requests either.
constexpr int64_t kTileLanes = 256;
// A tile's input rows, one more where tokens are shifted; and its requests with the end of the
// last.
constexpr int64_t kInputLanes = kTileLanes + kTileRows;

// A range of output rows. `begin` and `last_begin` count from its first row.
struct Tile {
  int64_t row;
  int64_t rows;
  int64_t lanes;     // rows, as a multiple of 8
  int64_t request;   // the first one that has rows here
  int64_t requests;  // live ones that have rows here
  int64_t ended;     // of those, from the first on, the ones that end here
  bool padded;       // rows behind the last live request: one more, without a token
  int64_t start;     // the first request's first input row
  int64_t begin;     // the first request's first output row: 0 or less
  int64_t last_start;
  int64_t last_begin;
  int64_t input;   // the first input row that has its place here
  int64_t inputs;  // how many have
  int64_t tokens;  // how many input rows are shown: with shift one more of a request cut off
};

// What the kernel was given, and what follows from it for all tiles.
struct Expansion {
  const MkvExpandInputs& in;
  int64_t more;     // rows of a request's part beyond those it had in the input
  int64_t live;     // live requests
  int64_t end;      // of the input's live rows
  int64_t out_end;  // of the output's
};

// A tile's requests. Lane i stands for request tile.request + i; the lane behind the live ones for
// the padding, which is like a request of fewer than no tokens.
class TileRequests {
 public:
  __aicore__ inline void Init(Memory& memory, const Vector& index, const Vector& bytes) {
    index_ = index;
    bytes_ = bytes;
    starts_ = memory.Words(kInputLanes);
    given_positions_ = memory.Words(kTileLanes * kTileRows);
    given_rejected_ = memory.Words(2 * kTileLanes);
    scratch_ = memory.Words(kTileLanes);
    offsets_ = memory.Words(kTileLanes);
    begins = memory.Words(kTileLanes);
    lengths_ = memory.Words(kTileLanes);
    next_rows = memory.Words(kTileLanes);
    positions = memory.Words(kTileLanes);
  }

  // Loads where requests start, and sets marks[row] = 4 where another one's rows begin: their
  // running sum is the byte of each row's request in the vectors here. Fills in the tile.
  __aicore__ inline void Find(const Expansion& all, const Vector& marks, Tile& tile) {
    const int64_t most = Least(tile.rows, all.live - tile.request);
    if (most > 0) {
      Load(starts_, all.in.query_start_loc + tile.request * 4, (most + 1) * 4);
    }
    Sync<HardEvent::MTE2_S>();
    Sync<HardEvent::V_S>();
    tile.padded = true;
    tile.requests = most;
    tile.ended = most;
    tile.last_start = most > 0 ? starts_.GetValue(0) : all.end;
    tile.start = tile.last_start;
    tile.last_begin = tile.start + tile.request * all.more - tile.row;
    tile.begin = tile.last_begin;
    for (int64_t lane = 1; lane <= most; ++lane) {
      const int64_t start = starts_.GetValue(static_cast<uint32_t>(lane));
      const int64_t begin = start + (tile.request + lane) * all.more - tile.row;
      if (begin >= tile.rows) {
        tile.padded = false;
        tile.requests = lane;
        tile.ended = begin == tile.rows ? lane : lane - 1;
        FindInputs(all, start, tile);
        return;
      }
      marks.SetValue(static_cast<uint32_t>(begin), 4);
      if (lane < most) {
        tile.last_start = start;
        tile.last_begin = begin;
      }
    }
    FindInputs(all, all.end, tile);
    starts_.SetValue(static_cast<uint32_t>(most), static_cast<int32_t>(all.end));
    // Its rows lie past the last that could be sampled.
    const int64_t before = all.end - all.in.sampled;
    starts_.SetValue(static_cast<uint32_t>(most + 1), static_cast<int32_t>(before));
  }

  // Where a live request starts in the input.
  __aicore__ inline int64_t StartOf(int64_t lane) const {
    return starts_.GetValue(static_cast<uint32_t>(lane));
  }

  // After Compute and V_S.
  __aicore__ inline int64_t PositionOf(int64_t lane) const {
    return positions.GetValue(static_cast<uint32_t>(lane));
  }

  // What the tile's live requests, one or more, were given.
  __aicore__ inline void LoadGiven(const Expansion& all, const Tile& tile) {
    const MkvExpandInputs& in = all.in;
    if (in.num_rejected != nullptr) {
      const int64_t width = in.wide_num_rejected != 0 ? 8 : 4;
      Load(given_rejected_, in.num_rejected + tile.request * width, tile.requests * width);
    }
    const int64_t width = in.wide_positions != 0 ? 8 : 4;
    const int64_t span = tile.last_start - tile.start + 1;
    // One copy, unless so much lies between that single elements, of 32 bytes each, are less.
    dense_ = span * width <= tile.requests * kBlockBytes;
    if (dense_) {
      Load(given_positions_, in.positions + tile.start * width, span * width);
      return;
    }
    for (int64_t lane = 0; lane < tile.requests; ++lane) {
      Load(
          given_positions_[static_cast<uint32_t>(lane * kTileRows)],
          in.positions + StartOf(lane) * width, width);
    }
  }

  // Tokens that the first request keeps. After LoadGiven and MTE2_S.
  __aicore__ inline int64_t KeptOfFirst(const Expansion& all) const {
    const int64_t length = StartOf(1) - StartOf(0);
    if (all.in.num_rejected == nullptr) {
      return length;
    }
    // The lower word is first.
    return length - given_rejected_.GetValue(0);
  }

  // After MTE2_V and S_V.
  __aicore__ inline void Compute(const Expansion& all, const Tile& tile) {
    const MkvExpandInputs& in = all.in;
    const Lanes lanes(tile.requests + (tile.padded ? 1 : 0));
    lanes.Take(lengths_, starts_, bytes_, 4);
    lanes.Sub(lengths_, lengths_, starts_);
    lanes.Muls(begins, index_, all.more);
    lanes.Add(begins, begins, starts_);
    lanes.Adds(begins, begins, tile.request * all.more - tile.row);
    lanes.Add(next_rows, begins, lengths_);
    lanes.Adds(next_rows, next_rows, -in.shift);
    if (tile.requests == 0) {
      return;
    }
    const Lanes live(tile.requests);
    if (in.num_rejected != nullptr) {
      live.Muls(offsets_, index_, in.wide_num_rejected != 0 ? 8 : 4);
      live.Take(scratch_, given_rejected_, offsets_);
      live.Sub(next_rows, next_rows, scratch_);
    }
    if (dense_) {
      live.Adds(offsets_, starts_, -tile.start);
      live.Muls(offsets_, offsets_, in.wide_positions != 0 ? 8 : 4);
    } else {
      live.Muls(offsets_, index_, kBlockBytes);
    }
    live.Take(positions, given_positions_, offsets_);
  }

  // What the outputs hold per request, for the lanes of those that end in the tile.
  __aicore__ inline void OutEnds(const Expansion& all, const Tile& tile, const Vector& to) const {
    const Lanes ended(tile.ended);
    ended.Add(to, begins, lengths_);
    ended.Adds(to, to, tile.row + all.more);
  }
  __aicore__ inline void Keys(const Expansion& all, const Tile& tile, const Vector& to) const {
    const Lanes ended(tile.ended);
    ended.Add(to, positions, lengths_);
    ended.Adds(to, to, all.more);
  }
  __aicore__ inline void NextPositions(const Tile& tile, const Vector& to) const {
    const Lanes ended(tile.ended);
    ended.Add(to, positions, next_rows);
    ended.Sub(to, to, begins);
  }

  // Where each request's part begins, and where its next token lies, in rows of the tile.
  Vector begins, next_rows;
  // Of each live request's first token.
  Vector positions;

 private:
  // Which input rows the tile shows; `behind` is the last live request's end.
  __aicore__ inline void FindInputs(const Expansion& all, int64_t behind, Tile& tile) const {
    tile.input = tile.start;
    tile.inputs = 0;
    tile.tokens = 0;
    if (tile.requests > 0) {
      const int64_t first_end = tile.requests > 1 ? StartOf(1) : behind;
      const int64_t end = tile.last_start + tile.rows - tile.last_begin;
      tile.input = Least(tile.start - tile.begin, first_end);
      tile.inputs = Least(end, behind) - tile.input;
      tile.tokens = Least(end + all.in.shift, behind) - tile.input;
    }
  }

  Vector index_, bytes_, starts_, given_positions_, given_rejected_, scratch_, offsets_, lengths_;
  bool dense_ = true;
};

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_EXPAND_TILE_H_
