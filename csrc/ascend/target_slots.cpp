// SPDX-License-Identifier: Apache-2.0
// target_slots: each token's slot in each KV group, -1 behind the last token (mkv_ascend/ops says
// what they are).
//
// Cores share the live tokens evenly, and what lies behind them as well; each takes its part in
// tiles of up to 64. Per group and token one small copy brings the block id; the scalar unit finds
// the token's request as it goes, since tokens of a request lie side by side.
#include "common.h"
#include "launch_size.h"
#include "launchers.h"
#include "positions.h"
#include "ascendc_launch.h"

namespace mkv {

constexpr int64_t kLanes = 64;
// Below that a core more costs more than it takes over.
constexpr int64_t kLeastTokens = 4;
constexpr int32_t kLaneCount = static_cast<int32_t>(kLanes);
constexpr uint32_t kLaneBytes = kLanes * sizeof(int32_t);
// A copy of one id takes 32 bytes.
constexpr int64_t kIdStride = kTileRows;

struct SlotShape {
  int64_t tokens;
  int64_t rows;
  int64_t groups;
  int64_t table_rows;
  int64_t most_slots;
};

template <typename Position>
class TargetSlotsKernel {
 public:
  __aicore__ inline void Init(
      GM_ADDR positions, GM_ADDR query_start_loc, GM_ADDR num_requests, GM_ADDR group_table,
      GM_ADDR slot_table, const SlotShape& shape) {
    shape_ = shape;
    positions_ = GlobalAt<Position>(positions);
    starts_ = GlobalAt<int32_t>(query_start_loc);
    group_table_ = GlobalAt<int64_t>(group_table);
    slot_table_ = GlobalAt<int64_t>(slot_table);
    const GlobalTensor<int32_t> live = GlobalAt<int32_t>(num_requests);
    const int64_t requests = Most(0, Least(shape.rows, live.GetValue(0)));
    // Requests past the block tables' rows come last, so their tokens do as well.
    requests_ = Least(requests, shape.table_rows);
    live_tokens_ = requests_ > 0 ? Least(shape.tokens, starts_.GetValue(requests_)) : 0;
    pipe_.InitBuffer(position_queue_, 1, kLanes * sizeof(Position));
    pipe_.InitBuffer(id_queue_, 2, kLanes * kIdStride * sizeof(int32_t));
    pipe_.InitBuffer(out_queue_, 2, kLaneBytes);
    pipe_.InitBuffer(lane_buffer_, 8 * kLaneBytes);
    const LocalTensor<int32_t> lane = lane_buffer_.Get<int32_t>();
    index_ = lane;
    live_ = lane[kLanes];
    position_ = lane[2 * kLanes];
    has_slot_ = lane[3 * kLanes];
    scratch_ = lane[4 * kLanes];
    id_places_ = lane[5 * kLanes];
    bases_ = lane[6 * kLanes];
  }

  __aicore__ inline void Run() {
    CreateVecIndex(index_, 0, kLanes);
    PipeBarrier<PIPE_V>();
    Muls(id_places_, index_, static_cast<int32_t>(kIdStride * sizeof(int32_t)), kLaneCount);
    // How many tokens are live is known on the device only.
    const int64_t live = Least(live_tokens_, shape_.most_slots);
    for (TakeShare(0, live); start_ < end_; start_ += kLanes) {
      tile_ = Least(kLanes, end_ - start_);
      WriteTile();
    }
    for (TakeShare(live, shape_.most_slots); start_ < end_; start_ += kLanes) {
      tile_ = Least(kLanes, end_ - start_);
      PadTile();
    }
  }

 private:
  // This core's part of the tokens from `begin` to `end`.
  __aicore__ inline void TakeShare(int64_t begin, int64_t end) {
    start_ = begin + GetBlockIdx() * (end - begin) / GetBlockNum();
    end_ = begin + (GetBlockIdx() + 1) * (end - begin) / GetBlockNum();
  }

  __aicore__ inline void WriteTile() {
    LocalTensor<Position> given = position_queue_.template AllocTensor<Position>();
    const uint32_t bytes = static_cast<uint32_t>(tile_ * sizeof(Position));
    DataCopyPad(
        given, positions_[start_], DataCopyExtParams{1, bytes, 0, 0, 0},
        DataCopyPadExtParams<Position>{false, 0, 0, 0});
    Sync<HardEvent::MTE2_S>();
    position_queue_.EnQue(given);
    given = position_queue_.template DeQue<Position>();
    CountMask(live_, index_, tile_, kLaneCount);
    NarrowPositions(position_, given, index_, live_, has_slot_, scratch_, kLaneCount);
    FindFirstRequest();
    FetchIds(given, 0);
    for (int64_t group = 0; group < shape_.groups; ++group) {
      // The next group's ids are on their way while this one's slots are computed.
      if (group + 1 < shape_.groups) {
        FetchIds(given, group + 1);
      }
      StoreSlots(group);
    }
    position_queue_.FreeTensor(given);
    Sync<HardEvent::S_MTE2>();
  }

  __aicore__ inline void PadTile() {
    for (int64_t group = 0; group < shape_.groups; ++group) {
      LocalTensor<int32_t> slots = out_queue_.template AllocTensor<int32_t>();
      Duplicate(slots, kPaddingSlot, kLaneCount);
      StoreTile(group, slots);
    }
  }

  // The request of the tile's first token: the last that does not begin behind it.
  __aicore__ inline void FindFirstRequest() {
    int64_t low = 0;
    int64_t high = requests_;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      if (starts_.GetValue(middle) <= start_) {
        low = middle;
      } else {
        high = middle;
      }
    }
    first_request_ = low;
  }

  __aicore__ inline void FetchIds(const LocalTensor<Position>& given, int64_t index) {
    const Group group = ReadGroup(group_table_, index);
    const int64_t limit = group.columns * group.block_size;
    const LocalTensor<int32_t> base = bases_[index % 2 * kLanes];
    if (group.exponent < 0) {
      // What the vector pipe still reads there was for the group before the last.
      Sync<HardEvent::V_S>();
    }
    const GlobalTensor<int32_t> table = GlobalAt<int32_t>(reinterpret_cast<GM_ADDR>(group.table));
    LocalTensor<int32_t> ids = id_queue_.template AllocTensor<int32_t>();
    int64_t request = first_request_;
    for (int64_t lane = 0; lane < tile_; ++lane) {
      // Empty requests are passed over.
      while (request + 1 < requests_ && starts_.GetValue(request + 1) <= start_ + lane) {
        ++request;
      }
      const int64_t position = static_cast<int64_t>(given.GetValue(static_cast<uint32_t>(lane)));
      int64_t column = 0;
      if (position >= 0 && position < limit) {
        column = group.exponent < 0 ? position / group.block_size : position >> group.exponent;
        DataCopyPad(
            ids[static_cast<uint32_t>(lane * kIdStride)],
            table[request * group.row_stride + column],
            DataCopyExtParams{1, sizeof(int32_t), 0, 0, 0},
            DataCopyPadExtParams<int32_t>{false, 0, 0, 0});
      }
      if (group.exponent < 0) {
        base.SetValue(static_cast<uint32_t>(lane), static_cast<int32_t>(column * group.block_size));
      }
    }
    id_queue_.EnQue(ids);
  }

  __aicore__ inline void StoreSlots(int64_t index) {
    const Group group = ReadGroup(group_table_, index);
    const LocalTensor<int32_t> base = bases_[index % 2 * kLanes];
    LocalTensor<int32_t> ids = id_queue_.template DeQue<int32_t>();
    const int64_t limit = Least(group.columns * group.block_size, INT32_MAX);
    RangeMask(has_slot_, scratch_, position_, limit, kLaneCount);
    if (group.exponent < 0) {
      Sync<HardEvent::S_V>();
    } else {
      ShiftRight(base, position_, group.exponent, kLaneCount);
      PipeBarrier<PIPE_V>();
      ShiftLeft(base, base, group.exponent, kLaneCount);
      PipeBarrier<PIPE_V>();
    }
    LocalTensor<int32_t> slots = out_queue_.template AllocTensor<int32_t>();
    Sub(scratch_, position_, base, kLaneCount);
    Gather(slots, ids, id_places_.template ReinterpretCast<uint32_t>(), 0, kLanes);
    PipeBarrier<PIPE_V>();
    id_queue_.FreeTensor(ids);
    Muls(slots, slots, static_cast<int32_t>(group.block_size), kLaneCount);
    PipeBarrier<PIPE_V>();
    Add(slots, slots, scratch_, kLaneCount);
    PipeBarrier<PIPE_V>();
    // -1 where there is no slot; what the ids hold there does not matter.
    Mul(slots, slots, has_slot_, kLaneCount);
    Adds(scratch_, has_slot_, kPaddingSlot, kLaneCount);
    PipeBarrier<PIPE_V>();
    Add(slots, slots, scratch_, kLaneCount);
    PipeBarrier<PIPE_V>();
    StoreTile(index, slots);
  }

  // As much of the tile as the group's output has room for.
  __aicore__ inline void StoreTile(int64_t index, LocalTensor<int32_t>& slots) {
    out_queue_.EnQue(slots);
    slots = out_queue_.template DeQue<int32_t>();
    const int64_t count = Least(tile_, slot_table_.GetValue(index * 2 + 1) - start_);
    if (count > 0) {
      const GlobalTensor<int32_t> out = GlobalAt<int32_t>(slot_table_.GetValue(index * 2));
      DataCopyPad(
          out[start_], slots,
          DataCopyExtParams{1, static_cast<uint32_t>(count * sizeof(int32_t)), 0, 0, 0});
    }
    out_queue_.FreeTensor(slots);
  }

  TPipe pipe_;
  TQue<TPosition::VECIN, 1> position_queue_;
  TQue<TPosition::VECIN, 2> id_queue_;
  TQue<TPosition::VECOUT, 1> out_queue_;
  TBuf<TPosition::VECCALC> lane_buffer_;
  LocalTensor<int32_t> index_, live_, position_, has_slot_, scratch_, id_places_, bases_;
  GlobalTensor<Position> positions_;
  GlobalTensor<int32_t> starts_;
  GlobalTensor<int64_t> group_table_, slot_table_;
  SlotShape shape_;
  int64_t requests_;
  int64_t live_tokens_;
  // Of the part and the tile in hand.
  int64_t start_;
  int64_t end_;
  int64_t tile_;
  int64_t first_request_;
};

}  // namespace mkv

extern "C" __global__ __aicore__ void mkv_target_slots_kernel(
    GM_ADDR positions, GM_ADDR query_start_loc, GM_ADDR num_requests, GM_ADDR group_table,
    GM_ADDR slot_table, const int32_t wide, const int64_t tokens, const int64_t rows,
    const int64_t groups, const int64_t table_rows, const int64_t most_slots) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  const mkv::SlotShape shape{tokens, rows, groups, table_rows, most_slots};
  if (wide != 0) {
    mkv::TargetSlotsKernel<int64_t> kernel;
    kernel.Init(positions, query_start_loc, num_requests, group_table, slot_table, shape);
    kernel.Run();
  } else {
    mkv::TargetSlotsKernel<int32_t> kernel;
    kernel.Init(positions, query_start_loc, num_requests, group_table, slot_table, shape);
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
  const uint32_t blocks = mkv::LaunchSize(most_slots, mkv::kLeastTokens, cores);
  MKV_LAUNCH(
      mkv_target_slots_kernel, blocks, stream, positions, query_start_loc, num_requests,
      group_table, slot_table, wide, tokens, rows, groups, table_rows, most_slots);
}
