// SPDX-License-Identifier: Apache-2.0
// Small kernels with what the checker must say of them. A case runs as a kernel on `cores` cores;
// x is an input of 1024 int32 (0, 1, 2, ...), y an output of 1024 int32 that starts as -7.
#ifndef MKV_ASCENDC_HOST_TESTS_CASES_H_
#define MKV_ASCENDC_HOST_TESTS_CASES_H_

#include <cstdint>
#include <vector>

#include "kernel_operator.h"
#include "ascendc_launch.h"

namespace cases {

using namespace AscendC;

constexpr int kElements = 1024;

struct Case {
  const char* name;
  const char* kind;  // the one kind of problem expected; "" for a right kernel
  int cores;
  void (*kernel)(GM_ADDR x, GM_ADDR y);
};

inline std::vector<Case>& All() {
  static std::vector<Case> all;
  return all;
}

struct Registered {
  explicit Registered(const Case& one) {
    All().push_back(one);
  }
};

// Unified buffer of 1 KiB each, and the two tensors. The data cache is empty, unless `emptied` is
// false.
struct Kit {
  TPipe pipe;
  TBuf<TPosition::VECIN> in_buffer;
  TBuf<TPosition::VECCALC> work_buffer;
  TBuf<TPosition::VECOUT> out_buffer;
  LocalTensor<int32_t> in, work, out;
  GlobalTensor<int32_t> x, y;

  Kit(GM_ADDR x_address, GM_ADDR y_address, bool emptied = true) {
    pipe.InitBuffer(in_buffer, 1024);
    pipe.InitBuffer(work_buffer, 1024);
    pipe.InitBuffer(out_buffer, 1024);
    in = in_buffer.Get<int32_t>();
    work = work_buffer.Get<int32_t>();
    out = out_buffer.Get<int32_t>();
    x.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(x_address));
    y.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(y_address));
    if (emptied) {
      DataCacheCleanAndInvalid<int32_t, CacheLine::ENTIRE_DATA_CACHE, DcciDst::CACHELINE_OUT>(y);
    }
  }
};

inline void Load(
    const LocalTensor<int32_t>& to, const GlobalTensor<int32_t>& from, uint32_t count,
    Where where = Where::Here()) {
  const DataCopyExtParams copy{1, count * 4, 0, 0, 0};
  DataCopyPad(to, from, copy, DataCopyPadExtParams<int32_t>{false, 0, 0, 0}, where);
}

inline void Store(
    const GlobalTensor<int32_t>& to, const LocalTensor<int32_t>& from, uint32_t count,
    Where where = Where::Here()) {
  DataCopyPad(to, from, DataCopyExtParams{1, count * 4, 0, 0, 0}, where);
}

template <HardEvent event>
void Sync(Where where = Where::Here()) {
  const auto id = GetTPipePtr()->FetchEventID(event);
  SetFlag<event>(id, where);
  WaitFlag<event>(id, where);
}

}  // namespace cases

#define MKV_CASE(NAME, KIND, CORES)                                               \
  static void NAME([[maybe_unused]] GM_ADDR gm_x, [[maybe_unused]] GM_ADDR gm_y); \
  static const ::cases::Registered registered_##NAME({#NAME, KIND, CORES, NAME}); \
  static void NAME([[maybe_unused]] GM_ADDR gm_x, [[maybe_unused]] GM_ADDR gm_y)

#endif  // MKV_ASCENDC_HOST_TESTS_CASES_H_
