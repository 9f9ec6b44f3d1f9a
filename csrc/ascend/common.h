// SPDX-License-Identifier: Apache-2.0
// What the kernels of this folder share. All synchronisation is explicit: the library is compiled
// with --cce-auto-sync=off, so that csrc/ascendc_host can check every order.
#ifndef MKV_ASCEND_ASCEND_COMMON_H_
#define MKV_ASCEND_ASCEND_COMMON_H_

#include "kernel_operator.h"

namespace mkv {

using namespace AscendC;

constexpr int32_t kPaddingSlot = -1;
constexpr uint32_t kBlockBytes = 32;
// Elements of int32 in 32 bytes, the unit of UB.
constexpr int64_t kTileRows = 8;

// At a kernel's entry. Its scalar unit reads what other kernels and copies have written; an earlier
// kernel may have left older bytes in the core's data cache, if its build does not empty it.
__aicore__ inline void EmptyDataCache() {
  DataCacheCleanAndInvalid<int32_t, CacheLine::ENTIRE_DATA_CACHE, DcciDst::CACHELINE_OUT>(
      GlobalTensor<int32_t>());
}

template <HardEvent event>
__aicore__ inline void Sync() {
  const event_t id = static_cast<event_t>(GetTPipePtr()->FetchEventID(event));
  SetFlag<event>(id);
  WaitFlag<event>(id);
}

__aicore__ inline int64_t Least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

__aicore__ inline int64_t Most(int64_t a, int64_t b) {
  return a > b ? a : b;
}

__aicore__ inline int64_t CeilDivide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

__aicore__ inline int64_t RoundUp(int64_t value, int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

template <typename T>
__aicore__ inline GlobalTensor<T> GlobalAt(GM_ADDR address) {
  GlobalTensor<T> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(address));
  return tensor;
}

// A tensor at an address that a table in global memory holds.
template <typename T>
__aicore__ inline GlobalTensor<T> GlobalAt(int64_t address) {
  GlobalTensor<T> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(address));
  return tensor;
}

// int32 or int64 elements that no kernel writes, read one at a time by the scalar unit.
class ScalarIndices {
 public:
  __aicore__ inline ScalarIndices(GM_ADDR address, bool wide) : wide_(wide) {
    if (wide) {
      wide_values_ = GlobalAt<int64_t>(address);
    } else {
      values_ = GlobalAt<int32_t>(address);
    }
  }

  __aicore__ inline int64_t Get(int64_t place) const {
    return wide_ ? wide_values_.GetValue(place) : static_cast<int64_t>(values_.GetValue(place));
  }

 private:
  GlobalTensor<int32_t> values_;
  GlobalTensor<int64_t> wide_values_;
  bool wide_;
};

// The exponent of a power of two, -1 for other numbers.
__aicore__ inline int32_t Exponent(int64_t value) {
  int32_t exponent = 0;
  while ((int64_t{1} << exponent) < value) {
    ++exponent;
  }
  return (int64_t{1} << exponent) == value ? exponent : -1;
}

// A row of the group table: address, row stride in elements, columns, block size.
struct Group {
  __gm__ int32_t* table;
  int64_t row_stride;
  int64_t columns;
  int64_t block_size;
  int32_t exponent;  // of the block size
};

// By the scalar unit's data cache: nobody writes group tables in a kernel.
__aicore__ inline Group ReadGroup(const GlobalTensor<int64_t>& groups, int64_t index) {
  Group group;
  group.table = reinterpret_cast<__gm__ int32_t*>(groups.GetValue(index * 4));
  group.row_stride = groups.GetValue(index * 4 + 1);
  group.columns = groups.GetValue(index * 4 + 2);
  group.block_size = groups.GetValue(index * 4 + 3);
  group.exponent = Exponent(group.block_size);
  return group;
}

// mask[i] = 1 where i < count, else 0, by the vector pipe. `index` holds 0, 1, 2, ...
__aicore__ inline void CountMask(
    const LocalTensor<int32_t>& mask, const LocalTensor<int32_t>& index, int64_t count,
    int32_t lanes) {
  Muls(mask, index, -1, lanes);
  PipeBarrier<PIPE_V>();
  Adds(mask, mask, static_cast<int32_t>(count), lanes);
  PipeBarrier<PIPE_V>();
  Maxs(mask, mask, 0, lanes);
  PipeBarrier<PIPE_V>();
  Mins(mask, mask, 1, lanes);
  PipeBarrier<PIPE_V>();
}

// mask[i] = 1 where 0 <= value[i] < limit, else 0. int32 has no order comparison on this chip.
// Whatever value there is, an overflow on the way ends in 0, both with wrap-around and with
// saturation.
__aicore__ inline void RangeMask(
    const LocalTensor<int32_t>& mask, const LocalTensor<int32_t>& scratch,
    const LocalTensor<int32_t>& value, int64_t limit, int32_t lanes) {
  const int32_t bound = static_cast<int32_t>(limit);
  Mins(scratch, value, bound, lanes);
  PipeBarrier<PIPE_V>();
  Maxs(scratch, scratch, -1, lanes);
  PipeBarrier<PIPE_V>();
  Muls(mask, scratch, -1, lanes);
  Mins(scratch, scratch, 0, lanes);
  PipeBarrier<PIPE_V>();
  Adds(mask, mask, bound, lanes);
  Adds(scratch, scratch, 1, lanes);
  PipeBarrier<PIPE_V>();
  Mins(mask, mask, 1, lanes);
  PipeBarrier<PIPE_V>();
  Mul(mask, mask, scratch, lanes);
  PipeBarrier<PIPE_V>();
}

// How far DivideNear may reach past the divisor.
constexpr int64_t kNear = 256;

// The block that a position lies in.
__aicore__ inline int64_t Column(const Group& group, int64_t position) {
  return group.exponent < 0 ? position / group.block_size : position >> group.exponent;
}

// quotient[i] = value[i] / divisor, for 0 <= value[i] < divisor + kNear. `exponent` is the
// divisor's, as above.
__aicore__ inline void DivideNear(
    const LocalTensor<int32_t>& quotient, const LocalTensor<int32_t>& value, int64_t divisor,
    int32_t exponent, int32_t lanes) {
  if (exponent >= 0) {
    ShiftRight(quotient, value, exponent, lanes);
  } else if (divisor < kNear) {
    // Exact: values are below 2 * kNear, so times what rounding up adds to the factor, which is
    // below kNear, they stay below 2 ** 20.
    Muls(quotient, value, static_cast<int32_t>(CeilDivide(1 << 20, divisor)), lanes);
    PipeBarrier<PIPE_V>();
    ShiftRight(quotient, quotient, 20, lanes);
  } else {
    // Below twice the divisor: 1 from there on, else 0.
    Adds(quotient, value, static_cast<int32_t>(1 - divisor), lanes);
    PipeBarrier<PIPE_V>();
    Maxs(quotient, quotient, 0, lanes);
    PipeBarrier<PIPE_V>();
    Mins(quotient, quotient, 1, lanes);
  }
  PipeBarrier<PIPE_V>();
}

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_COMMON_H_
