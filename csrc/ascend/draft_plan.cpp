// SPDX-License-Identifier: Apache-2.0
// draft_plan: positions, lengths and slots of all later steps of a proposal (mkv_ascend/ops says
// what they are).
//
// Cores share units of eight rows of one group, or of positions and lengths (plan_tasks.h). A core
// takes up to 64 rows at a time, and works on all steps of them in one vector operation: a matrix
// [steps][lanes]. Per group and row one small copy brings the block ids of all steps, which lie
// side by side in the block table; Gather spreads them over the steps.
#include "common.h"
#include "launch_size.h"
#include "launchers.h"
#include "plan_tasks.h"
#include "positions.h"
#include "slot_packer.h"
#include "step_matrix.h"
#include "ascendc_launch.h"

namespace mkv {

// A core reads group tables and positions of its own: for less it costs more than it takes over.
constexpr int64_t kLeastUnits = 2;

template <typename Position>
class DraftPlanKernel {
 public:
  __aicore__ inline void Init(
      TPipe* pipe, GM_ADDR positions, GM_ADDR num_requests, GM_ADDR group_table,
      GM_ADDR step_positions, GM_ADDR lengths, GM_ADDR slots, const PlanShape& shape) {
    pipe_ = pipe;
    shape_ = shape;
    positions_ = GlobalAt<Position>(positions);
    group_table_ = GlobalAt<int64_t>(group_table);
    step_positions_ = GlobalAt<Position>(step_positions);
    lengths_ = GlobalAt<int32_t>(lengths);
    slots_ = GlobalAt<int32_t>(slots);
    const GlobalTensor<int32_t> live = GlobalAt<int32_t>(num_requests);
    num_requests_ = live.GetValue(0);
    tasks_.Init(shape.rows, shape.groups + 1);
    // 64 lanes for up to 16 steps, and the same memory for more steps.
    lanes_ = static_cast<int32_t>(Least(64, tasks_.MostRows()));
    while (lanes_ > kTileRows && lanes_ * shape.steps > 1024) {
      lanes_ = static_cast<int32_t>(RoundUp(lanes_ / 2, kTileRows));
    }
    cells_ = static_cast<int32_t>(lanes_ * shape.steps);
    InitBuffers();
  }

  __aicore__ inline void Run() {
    CreateVecIndex(index_, 0, static_cast<uint32_t>(lanes_));
    PipeBarrier<PIPE_V>();
    if (packs_) {
      packer_.Prepare();
    }
    bool fetched = false;
    for (tasks_.Begin(lanes_); tasks_.Left();) {
      const PlanTask task = tasks_.Next();
      if (!HasRows(task)) {
        TakeRows(task);
      }
      if (task.part > 0 && !fetched) {
        FetchIds(task.part - 1);
      }
      // The next group's ids are on their way while this part is computed.
      fetched = tasks_.Left() && HasRows(tasks_.Ahead());
      if (fetched) {
        FetchIds(task.part);
      }
      if (task.part == 0) {
        StorePositions();
        StoreLengths();
      } else {
        StoreSlots(task.part - 1);
      }
    }
    FreeRows();
  }

 private:
  __aicore__ inline bool HasRows(const PlanTask& task) const {
    return task.start == start_ && task.rows == rows_;
  }

  __aicore__ inline void InitBuffers() {
    const uint32_t lane_bytes = static_cast<uint32_t>(lanes_ * sizeof(int32_t));
    const uint32_t matrix_bytes = static_cast<uint32_t>(cells_ * sizeof(int32_t));
    pipe_->InitBuffer(position_queue_, 1, static_cast<uint32_t>(lanes_ * sizeof(Position)));
    // Of each row as many ids as steps can need.
    const uint32_t id_bytes = static_cast<uint32_t>(RoundUp(shape_.steps, kTileRows) * lane_bytes);
    pipe_->InitBuffer(id_queue_, 2, id_bytes);
    packs_ = SlotPacker::Packs(shape_.rows, shape_.steps, shape_.groups) && GetBlockNum() == 1 &&
             shape_.slot_group_stride == shape_.rows &&
             shape_.slot_step_stride == shape_.groups * shape_.rows;
    uint32_t out_bytes = matrix_bytes * sizeof(Position) / sizeof(int32_t);
    if (packs_) {
      packer_.Init(*pipe_, shape_.rows, shape_.steps, shape_.groups);
      out_bytes = Most(out_bytes, packer_.Bytes());
    }
    pipe_->InitBuffer(out_queue_, 2, out_bytes);
    pipe_->InitBuffer(lane_buffer_, 6 * lane_bytes);
    pipe_->InitBuffer(matrix_buffer_, 6 * matrix_bytes);
    const LocalTensor<int32_t> lane = lane_buffer_.Get<int32_t>();
    index_ = lane;
    live_ = lane[lanes_];
    position_ = lane[2 * lanes_];
    lane_scratch_ = lane[3 * lanes_];
    bases_ = lane[4 * lanes_];
    const LocalTensor<int32_t> matrix = matrix_buffer_.Get<int32_t>();
    moved_ = matrix;
    valid_ = matrix[cells_];
    has_slot_ = matrix[2 * cells_];
    relative_ = matrix[3 * cells_];
    column_ = matrix[4 * cells_];
    scratch_ = matrix[5 * cells_];
  }

  __aicore__ inline void TakeRows(const PlanTask& task) {
    FreeRows();
    start_ = task.start;
    rows_ = task.rows;
    live_rows_ = Most(0, Least(rows_, num_requests_ - start_));
    given_ = position_queue_.template AllocTensor<Position>();
    DataCopyPad(
        given_, positions_[start_],
        DataCopyExtParams{1, static_cast<uint32_t>(rows_ * sizeof(Position)), 0, 0, 0},
        DataCopyPadExtParams<Position>{false, 0, 0, 0});
    // The scalar unit reads the positions too.
    Sync<HardEvent::MTE2_S>();
    position_queue_.EnQue(given_);
    given_ = position_queue_.template DeQue<Position>();
    CountMask(live_, index_, live_rows_, lanes_);
    NarrowPositions(position_, given_, index_, live_, lane_scratch_, scratch_, lanes_);
    // So that adding steps does not overflow below the largest maximum length.
    Mins(position_, position_, static_cast<int32_t>(shape_.max_model_len), lanes_);
    PipeBarrier<PIPE_V>();
    MovePositions();
  }

  __aicore__ inline void FreeRows() {
    if (rows_ > 0) {
      position_queue_.FreeTensor(given_);
      Sync<HardEvent::S_MTE2>();
    }
  }

  // Of an output whose steps are `stride` elements apart.
  __aicore__ inline StepMatrix Shape(int64_t stride) const {
    return {shape_.steps, lanes_, rows_, stride};
  }

  __aicore__ inline void MovePositions() {
    for (int64_t step = 0; step < shape_.steps; ++step) {
      Adds(moved_[step * lanes_], position_, static_cast<int32_t>(step + 1), lanes_);
    }
    PipeBarrier<PIPE_V>();
    RangeMask(valid_, scratch_, moved_, shape_.max_model_len, cells_);
    // relative_ holds the kept positions until the slots are computed.
    Mul(relative_, moved_, valid_, cells_);
    PipeBarrier<PIPE_V>();
  }

  __aicore__ inline void StorePositions() {
    LocalTensor<Position> out = out_queue_.template AllocTensor<Position>();
    if constexpr (sizeof(Position) == sizeof(int64_t)) {
      Cast(out, relative_, RoundMode::CAST_NONE, static_cast<uint32_t>(cells_));
    } else {
      Adds(out, relative_, 0, cells_);
    }
    out_queue_.EnQue(out);
    out = out_queue_.template DeQue<Position>();
    StoreSteps(step_positions_[start_], out, Shape(shape_.position_stride));
    out_queue_.FreeTensor(out);
  }

  __aicore__ inline void StoreLengths() {
    LocalTensor<int32_t> out = out_queue_.template AllocTensor<int32_t>();
    for (int64_t step = 0; step < shape_.steps; ++step) {
      Add(out[step * lanes_], relative_[step * lanes_], live_, lanes_);
    }
    out_queue_.EnQue(out);
    out = out_queue_.template DeQue<int32_t>();
    StoreSteps(lengths_[start_], out, Shape(shape_.length_stride));
    out_queue_.FreeTensor(out);
  }

  // Ids of a row that steps can need in this group, as a multiple of 8.
  __aicore__ inline int64_t IdsOfRow(const Group& group) const {
    return RoundUp((shape_.steps + group.block_size - 2) / group.block_size + 1, kTileRows);
  }

  // Where the group's slots end: at the maximum length, or at the end of the block table.
  __aicore__ inline int64_t Limit(const Group& group) const {
    return Least(shape_.max_model_len, group.columns * group.block_size);
  }

  __aicore__ inline void FetchIds(int64_t index) {
    const Group group = ReadGroup(group_table_, index);
    const int64_t limit = Limit(group);
    const int64_t width = IdsOfRow(group);
    const LocalTensor<int32_t> base = bases_[index % 2 * lanes_];
    if (group.exponent < 0) {
      // What the vector pipe still reads there was for the group before the last.
      Sync<HardEvent::V_S>();
    }
    const GlobalTensor<int32_t> table = GlobalAt<int32_t>(reinterpret_cast<GM_ADDR>(group.table));
    LocalTensor<int32_t> ids = id_queue_.template AllocTensor<int32_t>();
    for (int64_t row = 0; row < lanes_; ++row) {
      int64_t column = 0;
      if (row < Least(live_rows_, shape_.table_rows - start_)) {
        const int64_t position = static_cast<int64_t>(given_.GetValue(row));
        // Past the limit there is no slot, and adding could overflow.
        const int64_t from = position < limit ? Most(position + 1, 0) : 0;
        const int64_t to = position < limit ? Least(position + shape_.steps, limit - 1) : -1;
        if (from <= to) {
          column = Column(group, from);
          const int64_t count = Column(group, to) - column + 1;
          DataCopyPad(
              ids[row * width], table[(start_ + row) * group.row_stride + column],
              DataCopyExtParams{1, static_cast<uint32_t>(count * sizeof(int32_t)), 0, 0, 0},
              DataCopyPadExtParams<int32_t>{false, 0, 0, 0});
        }
      }
      if (group.exponent < 0) {
        base.SetValue(row, static_cast<int32_t>(column * group.block_size));
      }
    }
    id_queue_.EnQue(ids);
  }

  __aicore__ inline void StoreSlots(int64_t index) {
    const Group group = ReadGroup(group_table_, index);
    const int32_t block_size = static_cast<int32_t>(group.block_size);
    LocalTensor<int32_t> ids = id_queue_.template DeQue<int32_t>();
    MaskSlots(group);
    PipeBarrier<PIPE_V>();
    FindColumns(group, bases_[index % 2 * lanes_]);
    // Byte offset of the id: the row's place, and the column within.
    const int32_t row_bytes = static_cast<int32_t>(IdsOfRow(group) * sizeof(int32_t));
    Muls(lane_scratch_, index_, row_bytes, lanes_);
    Muls(scratch_, column_, static_cast<int32_t>(sizeof(int32_t)), cells_);
    PipeBarrier<PIPE_V>();
    for (int64_t step = 0; step < shape_.steps; ++step) {
      Add(scratch_[step * lanes_], scratch_[step * lanes_], lane_scratch_, lanes_);
    }
    Muls(column_, column_, block_size, cells_);
    PipeBarrier<PIPE_V>();
    Sub(relative_, relative_, column_, cells_);
    if (packs_) {
      ComputeSlots(packer_.SlotsOf(index), ids, block_size);
      id_queue_.FreeTensor(ids);
      if (index + 1 == shape_.groups) {
        packer_.Store(slots_, out_queue_);
      }
      return;
    }
    LocalTensor<int32_t> slots = out_queue_.template AllocTensor<int32_t>();
    ComputeSlots(slots, ids, block_size);
    id_queue_.FreeTensor(ids);
    out_queue_.EnQue(slots);
    slots = out_queue_.template DeQue<int32_t>();
    StoreSteps(
        slots_[index * shape_.slot_group_stride + start_], slots, Shape(shape_.slot_step_stride));
    out_queue_.FreeTensor(slots);
  }

  // From the places of ids in scratch_.
  __aicore__ inline void ComputeSlots(
      const LocalTensor<int32_t>& slots, const LocalTensor<int32_t>& ids, int32_t block_size) {
    const LocalTensor<uint32_t> places = scratch_.template ReinterpretCast<uint32_t>();
    Gather(slots, ids, places, 0, static_cast<uint32_t>(cells_));
    PipeBarrier<PIPE_V>();
    Muls(slots, slots, block_size, cells_);
    PipeBarrier<PIPE_V>();
    Add(slots, slots, relative_, cells_);
    PipeBarrier<PIPE_V>();
    // -1 where there is no slot; what the ids hold there does not matter.
    Mul(slots, slots, has_slot_, cells_);
    Adds(scratch_, has_slot_, kPaddingSlot, cells_);
    PipeBarrier<PIPE_V>();
    Add(slots, slots, scratch_, cells_);
    PipeBarrier<PIPE_V>();
  }

  // has_slot_ = 1 where a step's position has a slot in the group, else 0. A barrier must follow.
  __aicore__ inline void MaskSlots(const Group& group) {
    if (Limit(group) == shape_.max_model_len) {
      Adds(has_slot_, valid_, 0, cells_);
    } else {
      RangeMask(has_slot_, scratch_, moved_, Limit(group), cells_);
    }
    const int64_t table_rows = Most(0, shape_.table_rows - start_);
    if (table_rows < live_rows_) {
      CountMask(lane_scratch_, index_, table_rows, lanes_);
      for (int64_t step = 0; step < shape_.steps; ++step) {
        const LocalTensor<int32_t> of_step = has_slot_[step * lanes_];
        Mul(of_step, of_step, lane_scratch_, lanes_);
      }
    }
  }

  // relative_ = position from the start of the row's first block, column_ = which of its blocks;
  // both 0 where there is no slot.
  __aicore__ inline void FindColumns(const Group& group, const LocalTensor<int32_t>& base) {
    if (group.exponent < 0) {
      Sync<HardEvent::S_V>();
    } else {
      // The first step's position is where the first block is.
      Maxs(base, moved_, 0, lanes_);
      PipeBarrier<PIPE_V>();
      ShiftRight(base, base, group.exponent, lanes_);
      PipeBarrier<PIPE_V>();
      ShiftLeft(base, base, group.exponent, lanes_);
      PipeBarrier<PIPE_V>();
    }
    for (int64_t step = 0; step < shape_.steps; ++step) {
      Sub(relative_[step * lanes_], moved_[step * lanes_], base, lanes_);
    }
    PipeBarrier<PIPE_V>();
    Mul(relative_, relative_, has_slot_, cells_);
    PipeBarrier<PIPE_V>();
    DivideNear(column_, relative_, group.block_size, group.exponent, cells_);
  }

  TPipe* pipe_;
  TQue<TPosition::VECIN, 1> position_queue_;
  TQue<TPosition::VECIN, 2> id_queue_;
  TQue<TPosition::VECOUT, 1> out_queue_;
  TBuf<TPosition::VECCALC> lane_buffer_;
  TBuf<TPosition::VECCALC> matrix_buffer_;
  LocalTensor<int32_t> index_, live_, position_, lane_scratch_, bases_;
  LocalTensor<int32_t> moved_, valid_, has_slot_, relative_, column_, scratch_;
  GlobalTensor<Position> positions_, step_positions_;
  GlobalTensor<int64_t> group_table_;
  GlobalTensor<int32_t> lengths_, slots_;
  LocalTensor<Position> given_;
  PlanTasks tasks_;
  SlotPacker packer_;
  PlanShape shape_;
  int64_t num_requests_;
  bool packs_;
  int32_t lanes_;
  int32_t cells_;
  // Of the rows in hand.
  int64_t start_ = 0;
  int64_t rows_ = 0;
  int64_t live_rows_;
};

}  // namespace mkv

extern "C" __global__ __aicore__ void mkv_draft_plan_kernel(
    GM_ADDR positions, GM_ADDR num_requests, GM_ADDR group_table, GM_ADDR step_positions,
    GM_ADDR lengths, GM_ADDR slots, const int32_t wide, const int64_t rows, const int64_t steps,
    const int64_t groups, const int64_t table_rows, const int64_t max_model_len,
    const int64_t position_stride, const int64_t length_stride, const int64_t slot_step_stride,
    const int64_t slot_group_stride) {
  KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
  const mkv::PlanShape shape{
      rows,
      steps,
      groups,
      table_rows,
      max_model_len,
      position_stride,
      length_stride,
      slot_step_stride,
      slot_group_stride};
  mkv::EmptyDataCache();
  AscendC::TPipe pipe;
  if (wide != 0) {
    mkv::DraftPlanKernel<int64_t> kernel;
    kernel.Init(&pipe, positions, num_requests, group_table, step_positions, lengths, slots, shape);
    kernel.Run();
  } else {
    mkv::DraftPlanKernel<int32_t> kernel;
    kernel.Init(&pipe, positions, num_requests, group_table, step_positions, lengths, slots, shape);
    kernel.Run();
  }
}

extern "C" void mkv_ascend_draft_plan(
    uint32_t cores, void* stream, uint8_t* positions, uint8_t* num_requests, uint8_t* group_table,
    uint8_t* step_positions, uint8_t* lengths, uint8_t* slots, int32_t wide, int64_t rows,
    int64_t steps, int64_t groups, int64_t table_rows, int64_t max_model_len,
    int64_t position_stride, int64_t length_stride, int64_t slot_step_stride,
    int64_t slot_group_stride) {
  if (rows == 0 || steps == 0) {
    return;
  }
  // Fewer rows than a sector holds go to one core, which packs them.
  const int64_t units = rows < mkv::kTileRows ? 1 : (rows + 7) / 8 * (groups + 1);
  const uint32_t blocks = mkv::LaunchSize(units, mkv::kLeastUnits, cores);
  MKV_LAUNCH(
      mkv_draft_plan_kernel, blocks, stream, positions, num_requests, group_table, step_positions,
      lengths, slots, wide, rows, steps, groups, table_rows, max_model_len, position_stride,
      length_stride, slot_step_stride, slot_group_stride);
}
