// SPDX-License-Identifier: Apache-2.0
// expand_inputs: the first pass of a proposal (mkv_ascend/ops says what it is).
//
// Cores share the output's rows evenly, in eights, so that two never write into one block of 32
// bytes of int32. A core works on up to 256 rows at once, whatever requests they belong to: the
// running sum of marks where requests begin says whose each row is, and everything else of a row
// follows from the few numbers of its request, by Gather and arithmetic. Each output of a tile goes
// out in one copy. What there is once per request is written by the core that has its last row.
#include "common.h"
#include "expand_rope.h"
#include "expand_slots.h"
#include "expand_tile.h"
#include "launch_size.h"
#include "launchers.h"
#include "ascendc_launch.h"

namespace mkv {

// A core finds its requests before it works: not for a handful of rows. A request is as much work
// as a few rows, since it has block ids in every group.
constexpr int64_t kLeastRowsOfACore = 32;
constexpr int64_t kRowsOfARequest = 5;
// Words of the table of tokens: a tile's inputs, its requests' next tokens, and two constants.
constexpr int64_t kNextTokens = kInputLanes;
constexpr int64_t kConstantTokens = kNextTokens + kTileLanes;

class ExpandInputsKernel {
 public:
  __aicore__ inline ExpandInputsKernel(TPipe* pipe, const MkvExpandInputs& in)
      : memory_(pipe),
        in_(in),
        starts_(in.query_start_loc, false),
        all_{in, in.sampled - in.shift, 0, 0, 0} {
    if (in.num_tokens > 0 && in.num_rows > 0) {
      all_.live = Between(GlobalAt<int32_t>(in.num_requests).GetValue(0), 0, in.num_rows);
    }
    if (all_.live > 0) {
      all_.end = starts_.Get(all_.live);
    }
    all_.out_end = all_.end + all_.live * all_.more;
    InitVectors();
  }

  __aicore__ inline void Run() {
    const int64_t rows = Most(all_.out_end, in_.num_out_tokens);
    const int64_t end = Share(rows, 1);
    int64_t row = Share(rows, 0);
    int64_t request = row < end ? RequestOf(row) : 0;
    // Behind a tile's slots nothing is under way that the next tile could meet.
    while (row < end) {
      const int64_t count = Least(kTileLanes, end - row);
      request = WriteTile(row, count, request);
      row += count;
    }
    WriteRest();
  }

 private:
  __aicore__ inline void InitVectors() {
    index_ = memory_.Words(kInputLanes);
    bytes_ = memory_.Words(kInputLanes);
    table_ = memory_.Words(kConstantTokens + kTileRows);
    given_tokens_ = memory_.Words(2 * kInputLanes);
    given_next_ = memory_.Words(2 * kTileLanes);
    Vector* const vectors[] = {&owner_,     &place_,   &padding_, &later_,         &written_,
                               &positions_, &tokens_,  &scratch_, &other_scratch_, &out_ends_,
                               &keys_,      &samples_, &fill_};
    for (Vector* vector : vectors) {
      *vector = memory_.Words(kTileLanes);
    }
    wide_positions_ = memory_.Words(2 * kTileLanes);
    next_positions_ = memory_.Words(2 * kTileLanes);
    rejected_ = memory_.Words(kTileLanes / 4);
    masked_ = memory_.Words(kTileLanes / 4);
    CreateVecIndex(index_, 0, static_cast<uint32_t>(kInputLanes));
    PipeBarrier<PIPE_V>();
    Lanes(kInputLanes).Muls(bytes_, index_, 4);
    table_.SetValue(static_cast<uint32_t>(kConstantTokens), in_.parallel_token_id);
    table_.SetValue(static_cast<uint32_t>(kConstantTokens + 1), in_.padding_token_id);
    sums_.Init(memory_, bytes_, kTileLanes);
    requests_.Init(memory_, index_, bytes_);
    slots_.Init(memory_);
    if (in_.num_axes > 0) {
      rope_.Init(memory_, index_, bytes_);
    }
  }

  // Where this core's part of `count` begins (end = 0) or ends (end = 1).
  __aicore__ inline int64_t Share(int64_t count, int64_t end) const {
    const int64_t eights = CeilDivide(count, kTileRows);
    return Least(count, eights * (GetBlockIdx() + end) / GetBlockNum() * kTileRows);
  }

  // The request that has a row, the number of live ones for padding. Requests of one length are
  // found at once.
  __aicore__ inline int64_t RequestOf(int64_t row) const {
    if (row >= all_.out_end) {
      return all_.live;
    }
    int64_t low = 0;
    int64_t high = all_.live;
    int64_t probe = row * all_.live / all_.out_end;
    for (int64_t step = 1; high - low > 1; step *= 2) {
      probe = Between(probe, low + 1, high - 1);
      const bool before = starts_.Get(probe) + probe * all_.more <= row;
      (before ? low : high) = probe;
      const bool between = low > 0 && high < all_.live;
      probe = between ? (low + high) / 2 : (before ? low + step : high - step);
    }
    return low;
  }

  // Returns the request that has the next row.
  __aicore__ inline int64_t WriteTile(int64_t row, int64_t rows, int64_t request) {
    Tile tile{};
    tile.row = row;
    tile.rows = rows;
    tile.lanes = RoundUp(rows, kTileRows);
    tile.request = request;
    requests_.Find(all_, sums_.Start(Lanes(tile.lanes)), tile);
    if (tile.requests > 0) {
      requests_.LoadGiven(all_, tile);
      LoadTokens(tile);
    }
    if (in_.num_axes > 0) {
      rope_.Fetch(all_, tile, requests_, 0);
    }
    Sync<HardEvent::S_V>();
    Sync<HardEvent::MTE2_V>();
    requests_.Compute(all_, tile);
    Sync<HardEvent::V_S>();
    slots_.Fetch(all_, tile, requests_, 0);
    sums_.Finish(Lanes(tile.lanes), owner_);
    ComputeKinds(tile);
    ComputeTokens(tile);
    ComputePositions(tile);
    StoreRows(tile);
    if (tile.ended > 0) {
      WriteEnded(tile);
    }
    if (in_.hidden_rows != nullptr && tile.inputs > 0) {
      WriteHiddenRows(tile);
    }
    for (int64_t axis = 0; axis < in_.num_axes;) {
      rope_.Write(all_, tile, requests_, written_, owner_);
      axis = rope_.Next();
      if (axis < in_.num_axes) {
        rope_.Fetch(all_, tile, requests_, axis);
      }
    }
    for (int64_t group = 0; group < in_.num_groups;) {
      slots_.Write(all_, tile, positions_, written_, owner_);
      group = slots_.Next();
      if (group < in_.num_groups) {
        slots_.Fetch(all_, tile, requests_, group);
      }
    }
    return tile.request + tile.ended;
  }

  __aicore__ inline void LoadTokens(const Tile& tile) {
    const bool wide = in_.wide_token_ids != 0;
    const int64_t width = wide ? 8 : 4;
    if (tile.tokens > 0) {
      Load(wide ? given_tokens_ : table_, in_.token_ids + tile.input * width, tile.tokens * width);
    }
    const bool wide_next = in_.wide_next_token_ids != 0;
    const int64_t next_width = wide_next ? 8 : 4;
    Load(
        wide_next ? given_next_ : table_[static_cast<uint32_t>(kNextTokens)],
        in_.next_token_ids + tile.request * next_width, tile.requests * next_width);
  }

  // to[i] = the lower word of from[i].
  __aicore__ inline void TakeLower(const Vector& to, const Vector& from, int64_t count) const {
    const Lanes lanes(count);
    // Not in scratch_: there may be one lane more than a tile has.
    lanes.Muls(wide_positions_, index_, 8);
    lanes.Take(to, from, wide_positions_);
  }

  // What a row holds: place_ counts from its request's next token, later_ is 1 behind that one,
  // padding_ 1 behind the request's tokens.
  __aicore__ inline void ComputeKinds(const Tile& tile) {
    const Lanes lanes(tile.lanes);
    lanes.Take(place_, requests_.next_rows, owner_);
    lanes.Sub(place_, index_, place_);
    lanes.Reached(padding_, place_, in_.sampled);
    lanes.Reached(later_, place_, 1);
    lanes.Narrow(rejected_, padding_, bytes_, scratch_, other_scratch_);
    lanes.Sub(written_, later_, padding_);
    lanes.Narrow(masked_, written_, bytes_, scratch_, other_scratch_);
  }

  // Every row takes its token from a place of the table.
  __aicore__ inline void ComputeTokens(const Tile& tile) {
    if (tile.tokens > 0 && in_.wide_token_ids != 0) {
      TakeLower(table_, given_tokens_, tile.tokens);
    }
    if (tile.requests > 0 && in_.wide_next_token_ids != 0) {
      TakeLower(table_[static_cast<uint32_t>(kNextTokens)], given_next_, tile.requests);
    }
    const Lanes lanes(tile.lanes);
    const Vector& source = scratch_;
    const Vector& change = other_scratch_;
    const int64_t first = tile.row - tile.request * all_.more - tile.input + in_.shift;
    lanes.Muls(source, owner_, -all_.more);
    lanes.Add(source, source, bytes_);
    lanes.Adds(source, source, first * 4);
    // From there on to the request's next token, to the constant for later ones, to padding.
    lanes.Adds(tokens_, owner_, kNextTokens * 4);
    lanes.Sub(change, tokens_, source);
    lanes.Reached(written_, place_, 0);
    lanes.Mul(change, change, written_);
    lanes.Add(source, source, change);
    lanes.Muls(change, tokens_, -1);
    lanes.Adds(change, change, kConstantTokens * 4);
    lanes.Mul(change, change, later_);
    lanes.Add(source, source, change);
    lanes.Muls(change, padding_, 4);
    lanes.Add(source, source, change);
    lanes.Take(tokens_, table_, source);
  }

  // written_ becomes 1 for rows that are tokens with a position in the draft.
  __aicore__ inline void ComputePositions(const Tile& tile) {
    const Lanes lanes(tile.lanes);
    if (tile.requests > 0) {
      Lanes(tile.requests).Sub(scratch_, requests_.positions, requests_.begins);
    }
    lanes.Take(positions_, scratch_, owner_);
    lanes.Add(positions_, positions_, index_);
    RangeMask(written_, other_scratch_, positions_, in_.max_model_len, lanes.count());
    lanes.Muls(padding_, padding_, -1);
    lanes.Adds(padding_, padding_, 1);
    lanes.Mul(written_, written_, padding_);
    lanes.Mul(positions_, positions_, written_);
    if (in_.wide_out_positions != 0) {
      lanes.Widen(wide_positions_, positions_);
    }
  }

  __aicore__ inline void StoreRows(const Tile& tile) {
    Sync<HardEvent::V_MTE3>();
    const int64_t rows = Least(tile.rows, in_.num_out_tokens - tile.row);
    if (rows <= 0) {
      return;
    }
    const bool wide = in_.wide_out_positions != 0;
    const int64_t width = wide ? 8 : 4;
    Store(in_.out_token_ids + tile.row * 4, tokens_, rows * 4);
    Store(in_.rejected_mask + tile.row, rejected_, rows);
    Store(in_.masked_mask + tile.row, masked_, rows);
    Store(in_.out_positions + tile.row * width, wide ? wide_positions_ : positions_, rows * width);
  }

  // What there is once per request, of those that end here.
  __aicore__ inline void WriteEnded(const Tile& tile) {
    const bool wide = in_.wide_next_positions != 0;
    const int64_t width = wide ? 8 : 4;
    requests_.OutEnds(all_, tile, out_ends_);
    requests_.Keys(all_, tile, keys_);
    requests_.NextPositions(tile, wide ? scratch_ : next_positions_);
    if (wide) {
      Lanes(tile.ended).Widen(next_positions_, scratch_);
    }
    Sync<HardEvent::V_MTE3>();
    const int64_t to = tile.request;
    Store(in_.out_query_start_loc + (to + 1) * 4, out_ends_, tile.ended * 4);
    Store(in_.lengths + to * 4, keys_, tile.ended * 4);
    Store(in_.next_positions + to * width, next_positions_, tile.ended * width);
    const int64_t samples = tile.ended * in_.sampled;
    for (int64_t sample = 0; sample < samples; sample += kTileLanes) {
      WriteSamples(tile, sample, Least(kTileLanes, samples - sample));
    }
  }

  // Sampled rows lie side by side, from the next token on.
  __aicore__ inline void WriteSamples(const Tile& tile, int64_t sample, int64_t count) {
    const Lanes lanes(count);
    const Vector& request = other_scratch_;
    Sync<HardEvent::MTE3_V>();
    lanes.Adds(samples_, index_, sample);
    lanes.Divide(request, samples_, scratch_, in_.sampled);
    lanes.Muls(scratch_, request, -in_.sampled);
    lanes.Add(samples_, samples_, scratch_);
    lanes.Muls(request, request, 4);
    lanes.Take(scratch_, requests_.next_rows, request);
    lanes.Add(samples_, samples_, scratch_);
    lanes.Adds(samples_, samples_, tile.row);
    Sync<HardEvent::V_MTE3>();
    const int64_t to = tile.request * in_.sampled + sample;
    Store(in_.sample_indices + to * 4, samples_, count * 4);
  }

  // hidden_rows[i] = i + the rows that the requests before made room for.
  __aicore__ inline void WriteHiddenRows(const Tile& tile) {
    const Lanes lanes(tile.inputs);
    const Vector marks = sums_.Start(lanes);
    Sync<HardEvent::V_S>();
    for (int64_t lane = 1; lane < tile.requests && all_.more > 0; ++lane) {
      const int64_t place = requests_.StartOf(lane) - tile.input;
      if (place < tile.inputs) {
        marks.SetValue(static_cast<uint32_t>(place), static_cast<int32_t>(all_.more));
      }
    }
    Sync<HardEvent::S_V>();
    sums_.Finish(lanes, fill_);
    lanes.Add(fill_, fill_, index_);
    lanes.Adds(fill_, fill_, tile.input + tile.request * all_.more);
    Sync<HardEvent::V_MTE3>();
    Store(in_.hidden_rows + tile.input * 4, fill_, tile.inputs * 4);
  }

  // What lies behind the live requests and input rows.
  __aicore__ inline void WriteRest() {
    const int64_t requests = in_.num_rows - all_.live;
    const int64_t request = all_.live + Share(requests, 0);
    const int64_t count = all_.live + Share(requests, 1) - request;
    const int64_t words = in_.wide_next_positions != 0 ? 2 : 1;
    Fill(in_.out_query_start_loc + (request + 1) * 4, count, all_.out_end);
    Fill(in_.lengths + request * 4, count, 0);
    Fill(in_.next_positions + request * words * 4, count * words, 0);
    Fill(in_.sample_indices + request * in_.sampled * 4, count * in_.sampled, 0);
    if (GetBlockIdx() == 0) {
      Fill(in_.out_query_start_loc, 1, 0);
    }
    if (in_.hidden_rows != nullptr) {
      const int64_t inputs = in_.num_tokens - all_.end;
      const int64_t input = Share(inputs, 0);
      Fill(in_.hidden_rows + (all_.end + input) * 4, Share(inputs, 1) - input, -1);
    }
  }

  __aicore__ inline void Fill(GM_ADDR to, int64_t words, int64_t value) {
    if (words <= 0) {
      return;
    }
    Sync<HardEvent::MTE3_V>();
    Lanes(Least(words, kTileLanes)).Fill(fill_, value);
    Sync<HardEvent::V_MTE3>();
    for (int64_t word = 0; word < words; word += kTileLanes) {
      Store(to + word * 4, fill_, Least(kTileLanes, words - word) * 4);
    }
  }

  Memory memory_;
  const MkvExpandInputs& in_;
  const ScalarIndices starts_;
  Expansion all_;
  RunningSum sums_;
  TileRequests requests_;
  TileSlots slots_;
  TileRope rope_;
  Vector index_, bytes_, table_, given_tokens_, given_next_, wide_positions_, next_positions_;
  // Of a tile's rows: the byte of the request, and what follows from it.
  Vector owner_, place_, padding_, later_, written_, positions_, tokens_, rejected_, masked_;
  Vector out_ends_, keys_, samples_, fill_, scratch_, other_scratch_;
};

}  // namespace mkv

#define MKV_NAMED(name) name,
#define MKV_NAMED_WIDE(name) wide_##name,
#define MKV_GIVEN(name) , in.name
#define MKV_GIVEN_WIDE(name) , in.wide_##name
// The lists are replaced before MKV_LAUNCH takes its arguments apart.
#define MKV_LAUNCH_LIST(...) MKV_LAUNCH(__VA_ARGS__)

// The signature is written out: the build finds it in the text to make the launch from it. A test
// compares it with the list.
extern "C" __global__ __aicore__ void mkv_expand_inputs_kernel(
    GM_ADDR token_ids, GM_ADDR positions, GM_ADDR rope_positions, GM_ADDR next_token_ids,
    GM_ADDR query_start_loc, GM_ADDR num_rejected, GM_ADDR num_requests, GM_ADDR group_table,
    GM_ADDR out_token_ids, GM_ADDR out_positions, GM_ADDR out_rope_positions, GM_ADDR rejected_mask,
    GM_ADDR masked_mask, GM_ADDR sample_indices, GM_ADDR hidden_rows, GM_ADDR out_query_start_loc,
    GM_ADDR lengths, GM_ADDR next_positions, GM_ADDR slots, const int64_t num_rows,
    const int64_t num_tokens, const int64_t num_out_tokens, const int64_t num_groups,
    const int64_t table_rows, const int64_t num_axes, const int64_t sampled,
    const int64_t max_model_len, const int64_t rope_stride, const int64_t out_rope_stride,
    const int64_t slot_stride, const int32_t shift, const int32_t padding_token_id,
    const int32_t parallel_token_id, const int32_t wide_token_ids, const int32_t wide_positions,
    const int32_t wide_rope_positions, const int32_t wide_next_token_ids,
    const int32_t wide_num_rejected, const int32_t wide_out_positions,
    const int32_t wide_out_rope_positions, const int32_t wide_next_positions) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  const MkvExpandInputs arguments{
      MKV_EXPAND_INPUTS_WORDS(MKV_NAMED, MKV_NAMED, MKV_NAMED, MKV_NAMED_WIDE)};
  mkv::EmptyDataCache();
  AscendC::TPipe pipe;
  mkv::ExpandInputsKernel kernel(&pipe, arguments);
  kernel.Run();
}

extern "C" void mkv_ascend_expand_inputs(
    uint32_t cores, void* stream, const MkvExpandInputs* arguments) {
  const MkvExpandInputs& in = *arguments;
  const int64_t rows = in.num_out_tokens > in.num_tokens ? in.num_out_tokens : in.num_tokens;
  const int64_t requests = in.num_rows * mkv::kRowsOfARequest;
  const uint32_t blocks =
      mkv::LaunchSize(rows > requests ? rows : requests, mkv::kLeastRowsOfACore, cores);
  MKV_LAUNCH_LIST(
      mkv_expand_inputs_kernel, blocks,
      stream MKV_EXPAND_INPUTS_WORDS(MKV_GIVEN, MKV_GIVEN, MKV_GIVEN, MKV_GIVEN_WIDE));
}
