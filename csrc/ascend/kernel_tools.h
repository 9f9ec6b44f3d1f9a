// SPDX-License-Identifier: Apache-2.0
// What all kernels share. Synchronisation is explicit (--cce-auto-sync=off), so that it can be
// checked on a CPU; see csrc/ascendc_host.
#pragma once

#include "kernel_operator.h"
#include "ascendc_launch.h"

namespace mkv::ascend {

constexpr uint32_t kBlockBytes = 32;  // the unit of the unified buffer (UB)

__aicore__ inline int64_t Least(int64_t a, int64_t b) {
  return a < b ? a : b;
}

__aicore__ inline int64_t Most(int64_t a, int64_t b) {
  return a > b ? a : b;
}

__aicore__ inline int64_t CeilDivide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

__aicore__ inline int64_t RoundUp(int64_t a, int64_t unit) {
  return CeilDivide(a, unit) * unit;
}

// One pipe waits for what another has been given so far.
template <AscendC::HardEvent event>
__aicore__ inline void Synchronise() {
  using namespace AscendC;  // where GetTPipePtr stands differs between releases of CANN
  const auto id = static_cast<int32_t>(GetTPipePtr()->FetchEventID(event));
  AscendC::SetFlag<event>(id);
  AscendC::WaitFlag<event>(id);
}

template <typename T>
__aicore__ inline AscendC::GlobalTensor<T> GlobalAt(GM_ADDR address) {
  AscendC::GlobalTensor<T> tensor;
  tensor.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(address));
  return tensor;
}

// A tensor at an address that a table in global memory holds.
template <typename T>
__aicore__ inline AscendC::GlobalTensor<T> GlobalAt(int64_t address) {
  AscendC::GlobalTensor<T> tensor;
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
  AscendC::GlobalTensor<int32_t> values_;
  AscendC::GlobalTensor<int64_t> wide_values_;
  bool wide_;
};

}  // namespace mkv::ascend
