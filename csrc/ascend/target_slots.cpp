// SPDX-License-Identifier: Apache-2.0
// target_slots: each token's slot in each KV group, -1 behind the last token (mkv_ascend/ops says
// what they are).
//
// Cores share the live tokens evenly, and what lies behind them as well; each takes its part in
// tiles of up to 256 tokens, the lanes of its vectors. Positions of a request mostly follow each
// other, but need not. A run is as many neighbouring tokens of a request as do: its block ids lie
// side by side in the block table, so per group and run one copy brings each id once. The vector
// pipe finds where runs begin, the scalar unit only looks at each request and each run.
#include "common.h"
#include "launch_size.h"
#include "launchers.h"
#include "position_runs.h"
#include "positions.h"
#include "ascendc_launch.h"

namespace mkv {

// A core reads some 400 bytes before it knows its work, so it gets that to move, at the least; and
// whole sectors of slots where the batch is small.
constexpr int64_t kLeastBytes = 1024;
constexpr int64_t kLeastTokens = kTileRows;
// Each lane has room for a copy of one id, which takes 32 bytes; a run has the room of its lanes.
constexpr int64_t kIdStride = kTileRows;

struct SlotShape {
  int64_t tokens;
  int64_t rows;
  int64_t groups;
  int64_t table_rows;
  int64_t most_slots;
};

// A group whose ids are fetched.
struct FetchedGroup {
  Group group;
  int64_t limit;   // positions from here on have no slot
  bool as_before;  // block size and limit are those of the group before
};

template <typename Position>
class TargetSlotsKernel {
 public:
  __aicore__ inline void Init(
      TPipe* pipe, GM_ADDR positions, GM_ADDR query_start_loc, GM_ADDR num_requests,
      GM_ADDR group_table, GM_ADDR slot_table, const SlotShape& shape) {
    pipe_ = pipe;
    shape_ = shape;
    positions_ = GlobalAt<Position>(positions);
    const GlobalTensor<int32_t> starts = GlobalAt<int32_t>(query_start_loc);
    group_table_ = GlobalAt<int64_t>(group_table);
    slot_table_ = GlobalAt<int64_t>(slot_table);
    const GlobalTensor<int32_t> live = GlobalAt<int32_t>(num_requests);
    const int64_t requests = Most(0, Least(shape.rows, live.GetValue(0)));
    // Requests past the block tables' rows come last, so their tokens do as well.
    const int64_t served = Least(requests, shape.table_rows);
    live_tokens_ = served > 0 ? Least(shape.tokens, starts.GetValue(served)) : 0;
    live_tokens_ = Least(live_tokens_, shape.most_slots);
    const int64_t padding = shape.most_slots - live_tokens_;
    const int64_t share = CeilDivide(Most(live_tokens_, padding), GetBlockNum());
    lanes_ = static_cast<int32_t>(RoundUp(Least(share, kMostLanes), kTileRows));
    InitBuffers();
    runs_.Init(*pipe_, starts, served, lanes_);
  }

  __aicore__ inline void Run() {
    CreateVecIndex(index_, 0, static_cast<uint32_t>(lanes_));
    runs_.Clear();
    PipeBarrier<PIPE_V>();
    Muls(index_bytes_, index_, kWord, lanes_);
    // How many tokens are live is known on the device only.
    TakeShare(0, live_tokens_);
    if (start_ < end_) {
      runs_.Seek(start_, live_tokens_);
    }
    for (; start_ < end_; start_ += lanes_) {
      tile_ = Least(lanes_, end_ - start_);
      WriteTile();
    }
    PadShare();
  }

 private:
  __aicore__ inline void InitBuffers() {
    const uint32_t lane_bytes = static_cast<uint32_t>(lanes_) * sizeof(int32_t);
    pipe_->InitBuffer(position_queue_, 1, static_cast<uint32_t>(lanes_) * sizeof(Position));
    pipe_->InitBuffer(id_queue_, 2, lane_bytes * kIdStride);
    pipe_->InitBuffer(out_queue_, 2, lane_bytes);
    pipe_->InitBuffer(position_buffer_, kBlockBytes + lane_bytes);
    pipe_->InitBuffer(lane_buffer_, 14 * lane_bytes);
    position_padded_ = position_buffer_.Get<int32_t>();
    position_ = position_padded_[kTileRows];
    const LocalTensor<int32_t> lane = lane_buffer_.Get<int32_t>();
    index_ = lane;
    index_bytes_ = lane[lanes_];
    clamped_ = lane[2 * lanes_];
    negated_ = lane[3 * lanes_];
    counted_ = lane[4 * lanes_];
    run_bytes_ = lane[5 * lanes_];
    run_places_ = lane[6 * lanes_];
    has_slot_ = lane[7 * lanes_];
    missing_ = lane[8 * lanes_];
    rest_ = lane[9 * lanes_];
    places_ = lane[10 * lanes_];
    scratch_ = lane[11 * lanes_];
    bases_ = lane[12 * lanes_];
  }

  // This core's part of the tokens from `begin` to `end`.
  __aicore__ inline void TakeShare(int64_t begin, int64_t end) {
    start_ = begin + GetBlockIdx() * (end - begin) / GetBlockNum();
    end_ = begin + (GetBlockIdx() + 1) * (end - begin) / GetBlockNum();
  }

  __aicore__ inline void WriteTile() {
    LoadPositions();
    runs_.Find(position_padded_, index_, index_bytes_, scratch_, start_, tile_);
    Muls(run_bytes_, runs_.beginnings(), kWord, lanes_);
    Muls(run_places_, runs_.beginnings(), static_cast<int32_t>(kIdStride * kWord), lanes_);
    FetchIds(0);
    for (int64_t group = 0; group < shape_.groups; ++group) {
      // The next group's ids are on their way while this one's slots are computed.
      if (group + 1 < shape_.groups) {
        FetchIds(group + 1);
      }
      StoreSlots(group);
    }
  }

  __aicore__ inline void LoadPositions() {
    LocalTensor<Position> given = position_queue_.template AllocTensor<Position>();
    const uint32_t bytes = static_cast<uint32_t>(tile_ * sizeof(Position));
    DataCopyPad(
        given, positions_[start_], DataCopyExtParams{1, bytes, 0, 0, 0},
        DataCopyPadExtParams<Position>{false, 0, 0, 0});
    position_queue_.EnQue(given);
    given = position_queue_.template DeQue<Position>();
    // The scalar unit has read the positions and runs of the tile before.
    Sync<HardEvent::S_V>();
    CountMask(has_slot_, index_, tile_, lanes_);
    NarrowPositions(position_, given, index_, has_slot_, rest_, scratch_, lanes_);
    position_queue_.FreeTensor(given);
    // What all groups need to tell which positions have a slot.
    Maxs(clamped_, position_, 0, lanes_);
    Maxs(counted_, position_, -1, lanes_);
    PipeBarrier<PIPE_V>();
    Muls(negated_, clamped_, -1, lanes_);
    Mins(counted_, counted_, 0, lanes_);
    PipeBarrier<PIPE_V>();
    Adds(counted_, counted_, 1, lanes_);
  }

  __aicore__ inline void FetchIds(int64_t index) {
    FetchedGroup& fetched = fetched_[index % 2];
    const FetchedGroup& before = fetched_[(index + 1) % 2];
    const Group group = ReadGroup(group_table_, index);
    fetched.group = group;
    fetched.limit = Least(group.columns * group.block_size, INT32_MAX);
    fetched.as_before =
        index > 0 && fetched.limit == before.limit && group.block_size == before.group.block_size;
    const LocalTensor<int32_t> base = bases_[index % 2 * lanes_];
    const bool by_scalar = group.exponent < 0 && !fetched.as_before;
    if (by_scalar) {
      // What the vector pipe still reads there was for the group before the last.
      Sync<HardEvent::V_S>();
    }
    const GlobalTensor<int32_t> table = GlobalAt<int32_t>(reinterpret_cast<GM_ADDR>(group.table));
    LocalTensor<int32_t> ids = id_queue_.template AllocTensor<int32_t>();
    for (int64_t place = 0; place < runs_.count(); ++place) {
      const PositionRun run = runs_.Get(place);
      const int64_t from = Most(0, run.position);
      const int64_t to = Least(int64_t{run.position} + run.count, fetched.limit) - 1;
      if (from > to) {
        continue;
      }
      const int64_t column = Column(group, from);
      const int64_t count = Column(group, to) - column + 1;
      DataCopyPad(
          ids[static_cast<uint32_t>(run.lane * kIdStride)],
          table[run.request * group.row_stride + column],
          DataCopyExtParams{1, static_cast<uint32_t>(count * sizeof(int32_t)), 0, 0, 0},
          DataCopyPadExtParams<int32_t>{false, 0, 0, 0});
      if (by_scalar) {
        base.SetValue(
            static_cast<uint32_t>(run.lane), static_cast<int32_t>(column * group.block_size));
      }
    }
    id_queue_.EnQue(ids);
  }

  __aicore__ inline void StoreSlots(int64_t index) {
    const FetchedGroup& fetched = fetched_[index % 2];
    LocalTensor<int32_t> ids = id_queue_.template DeQue<int32_t>();
    if (!fetched.as_before) {
      PlaceLanes(fetched, bases_[index % 2 * lanes_]);
    }
    LocalTensor<int32_t> slots = out_queue_.template AllocTensor<int32_t>();
    Gather(slots, ids, Places(places_), 0, Lanes());
    PipeBarrier<PIPE_V>();
    id_queue_.FreeTensor(ids);
    Muls(slots, slots, static_cast<int32_t>(fetched.group.block_size), lanes_);
    PipeBarrier<PIPE_V>();
    Add(slots, slots, rest_, lanes_);
    PipeBarrier<PIPE_V>();
    // -1 where there is no slot; what the ids hold there does not matter.
    Mul(slots, slots, has_slot_, lanes_);
    PipeBarrier<PIPE_V>();
    Add(slots, slots, missing_, lanes_);
    StoreTile(index, slots);
  }

  // Of each lane in the group: has_slot_, missing_ = -1 where it has none, rest_ = the position in
  // its block, places_ = where its block's id lies, in bytes.
  __aicore__ inline void PlaceLanes(const FetchedGroup& fetched, const LocalTensor<int32_t>& base) {
    const int32_t block_size = static_cast<int32_t>(fetched.group.block_size);
    const int32_t exponent = fetched.group.exponent;
    Adds(has_slot_, negated_, static_cast<int32_t>(fetched.limit), lanes_);
    PipeBarrier<PIPE_V>();
    Mins(has_slot_, has_slot_, 1, lanes_);
    PipeBarrier<PIPE_V>();
    Maxs(has_slot_, has_slot_, 0, lanes_);
    PipeBarrier<PIPE_V>();
    Mul(has_slot_, has_slot_, counted_, lanes_);
    // Where the first block of each run begins, at the run's first lane.
    if (exponent < 0) {
      Sync<HardEvent::S_V>();
    } else {
      ShiftRight(base, clamped_, exponent, lanes_);
      PipeBarrier<PIPE_V>();
      ShiftLeft(base, base, exponent, lanes_);
    }
    PipeBarrier<PIPE_V>();
    Gather(rest_, base, Places(run_bytes_), 0, Lanes());
    PipeBarrier<PIPE_V>();
    Sub(rest_, clamped_, rest_, lanes_);
    Adds(missing_, has_slot_, kPaddingSlot, lanes_);
    PipeBarrier<PIPE_V>();
    Mul(rest_, rest_, has_slot_, lanes_);
    PipeBarrier<PIPE_V>();
    DivideNear(places_, rest_, fetched.group.block_size, exponent, lanes_);
    Muls(scratch_, places_, block_size, lanes_);
    PipeBarrier<PIPE_V>();
    Sub(rest_, rest_, scratch_, lanes_);
    Muls(places_, places_, kWord, lanes_);
    PipeBarrier<PIPE_V>();
    Add(places_, places_, run_places_, lanes_);
    PipeBarrier<PIPE_V>();
  }

  // -1 behind the live tokens, from one buffer that is filled once.
  __aicore__ inline void PadShare() {
    TakeShare(live_tokens_, shape_.most_slots);
    if (start_ >= end_) {
      return;
    }
    LocalTensor<int32_t> slots = out_queue_.template AllocTensor<int32_t>();
    Duplicate(slots, kPaddingSlot, lanes_);
    out_queue_.EnQue(slots);
    slots = out_queue_.template DeQue<int32_t>();
    for (; start_ < end_; start_ += lanes_) {
      tile_ = Least(lanes_, end_ - start_);
      for (int64_t group = 0; group < shape_.groups; ++group) {
        CopyTile(group, slots);
      }
    }
    out_queue_.FreeTensor(slots);
  }

  __aicore__ inline void StoreTile(int64_t index, LocalTensor<int32_t>& slots) {
    out_queue_.EnQue(slots);
    slots = out_queue_.template DeQue<int32_t>();
    CopyTile(index, slots);
    out_queue_.FreeTensor(slots);
  }

  // As much of the tile as the group's output has room for.
  __aicore__ inline void CopyTile(int64_t index, const LocalTensor<int32_t>& slots) {
    const int64_t count = Least(tile_, slot_table_.GetValue(index * 2 + 1) - start_);
    if (count > 0) {
      const GlobalTensor<int32_t> out = GlobalAt<int32_t>(slot_table_.GetValue(index * 2));
      DataCopyPad(
          out[start_], slots,
          DataCopyExtParams{1, static_cast<uint32_t>(count * sizeof(int32_t)), 0, 0, 0});
    }
  }

  __aicore__ inline LocalTensor<uint32_t> Places(const LocalTensor<int32_t>& bytes) const {
    return bytes.ReinterpretCast<uint32_t>();
  }

  __aicore__ inline uint32_t Lanes() const {
    return static_cast<uint32_t>(lanes_);
  }

  TPipe* pipe_;
  TQue<TPosition::VECIN, 1> position_queue_;
  TQue<TPosition::VECIN, 2> id_queue_;
  TQue<TPosition::VECOUT, 1> out_queue_;
  TBuf<TPosition::VECCALC> position_buffer_, lane_buffer_;
  LocalTensor<int32_t> position_padded_, position_;
  LocalTensor<int32_t> index_, index_bytes_, clamped_, negated_, counted_, run_bytes_, run_places_;
  LocalTensor<int32_t> has_slot_, missing_, rest_, places_, scratch_, bases_;
  GlobalTensor<Position> positions_;
  GlobalTensor<int64_t> group_table_, slot_table_;
  PositionRuns runs_;
  SlotShape shape_;
  int64_t live_tokens_;
  int32_t lanes_;
  // Of the part and the tile in hand.
  int64_t start_;
  int64_t end_;
  int64_t tile_;
  FetchedGroup fetched_[2];
};

}  // namespace mkv

extern "C" __global__ __aicore__ void mkv_target_slots_kernel(
    GM_ADDR positions, GM_ADDR query_start_loc, GM_ADDR num_requests, GM_ADDR group_table,
    GM_ADDR slot_table, const int32_t wide, const int64_t tokens, const int64_t rows,
    const int64_t groups, const int64_t table_rows, const int64_t most_slots) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  const mkv::SlotShape shape{tokens, rows, groups, table_rows, most_slots};
  mkv::EmptyDataCache();
  AscendC::TPipe pipe;
  if (wide != 0) {
    mkv::TargetSlotsKernel<int64_t> kernel;
    kernel.Init(&pipe, positions, query_start_loc, num_requests, group_table, slot_table, shape);
    kernel.Run();
  } else {
    mkv::TargetSlotsKernel<int32_t> kernel;
    kernel.Init(&pipe, positions, query_start_loc, num_requests, group_table, slot_table, shape);
    kernel.Run();
  }
}

extern "C" void mkv_ascend_target_slots(
    uint32_t cores, void* stream, uint8_t* positions, uint8_t* query_start_loc,
    uint8_t* num_requests, uint8_t* group_table, uint8_t* slot_table, int32_t wide, int64_t tokens,
    int64_t rows, int64_t groups, int64_t table_rows, int64_t most_slots) {
  if (most_slots == 0) {
    return;
  }
  // Ids of each request, positions and slots of each token.
  const int64_t bytes = rows * groups * 32 + most_slots * (8 + 4 * groups);
  const uint32_t worth = mkv::LaunchSizeOrAll(bytes, mkv::kLeastBytes, cores);
  const uint32_t blocks = mkv::LaunchSizeOrAll(most_slots, mkv::kLeastTokens, worth);
  MKV_LAUNCH(
      mkv_target_slots_kernel, blocks, stream, positions, query_start_loc, num_requests,
      group_table, slot_table, wide, tokens, rows, groups, table_rows, most_slots);
}
