// SPDX-License-Identifier: Apache-2.0
// What draft_plan has to do, and how cores share it. A unit is 8 rows, which are 32 bytes of int32,
// of one part: of positions and lengths, or of one group's slots. Each core gets as many units as
// the others, part by part, and no two store into one sector.
#ifndef MKV_ASCEND_ASCEND_PLAN_TASKS_H_
#define MKV_ASCEND_ASCEND_PLAN_TASKS_H_

#include "common.h"

namespace mkv {

// Sizes of a launch; strides count elements.
struct PlanShape {
  int64_t rows;
  int64_t steps;
  int64_t groups;
  int64_t table_rows;
  int64_t max_model_len;
  int64_t position_stride;
  int64_t length_stride;
  int64_t slot_step_stride;
  int64_t slot_group_stride;
};

// Rows [start, start + rows) of a part: 0 for positions and lengths, then one for each group.
struct PlanTask {
  int64_t part;
  int64_t start;
  int64_t rows;
  int64_t units;
};

class PlanTasks {
 public:
  __aicore__ inline void Init(int64_t rows, int64_t parts) {
    rows_ = rows;
    tiles_ = CeilDivide(rows, kTileRows);
    units_ = tiles_ * parts;
  }

  // Rows that any core's task can have, but for a limit given to Begin.
  __aicore__ inline int64_t MostRows() const {
    return Least(CeilDivide(units_, GetBlockNum()), tiles_) * kTileRows;
  }

  // From this core's first task on; none has more than `limit` rows, a multiple of 8.
  __aicore__ inline void Begin(int64_t limit) {
    limit_ = limit / kTileRows;
    unit_ = GetBlockIdx() * units_ / GetBlockNum();
    end_ = (GetBlockIdx() + 1) * units_ / GetBlockNum();
  }

  __aicore__ inline bool Left() const {
    return unit_ < end_;
  }

  // The task that comes next.
  __aicore__ inline PlanTask Ahead() const {
    const int64_t part = unit_ / tiles_;
    const int64_t tile = unit_ - part * tiles_;
    const int64_t units = Least(Least(end_ - unit_, tiles_ - tile), limit_);
    const int64_t start = tile * kTileRows;
    return {part, start, Least(units * kTileRows, rows_ - start), units};
  }

  __aicore__ inline PlanTask Next() {
    const PlanTask task = Ahead();
    unit_ += task.units;
    return task;
  }

 private:
  int64_t rows_;
  int64_t tiles_;
  int64_t units_;
  // Of this core.
  int64_t limit_;
  int64_t unit_;
  int64_t end_;
};

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_PLAN_TASKS_H_
