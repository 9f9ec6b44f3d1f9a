// SPDX-License-Identifier: Apache-2.0
// Parameters of copies: plain values, the same for the checker and for the declarations that clang
// parses kernels with.
#ifndef MKV_ASCENDC_HOST_PARAMETERS_H_
#define MKV_ASCENDC_HOST_PARAMETERS_H_

#include "platform.h"

namespace AscendC {

// blockLen counts bytes. Strides lie between the end of a block and the start of the next: bytes in
// global memory, 32-byte units in UB.
struct DataCopyExtParams {
  __aicore__ DataCopyExtParams() {}
  __aicore__ DataCopyExtParams(
      const uint16_t count, const uint32_t len, const uint32_t srcStrideIn,
      const uint32_t dstStrideIn, const uint32_t rsvIn)
      : blockCount(count),
        blockLen(len),
        srcStride(srcStrideIn),
        dstStride(dstStrideIn),
        rsv(rsvIn) {}

  uint16_t blockCount = 1;
  uint32_t blockLen = 0;
  uint32_t srcStride = 0;
  uint32_t dstStride = 0;
  uint32_t rsv = 0;
};

// Paddings count elements, at most 32 bytes on each side.
template <typename T>
struct DataCopyPadExtParams {
  __aicore__ DataCopyPadExtParams() {}
  __aicore__ DataCopyPadExtParams(
      const bool isPadValue, const uint8_t leftPadValue, const uint8_t rightPadValue, T padValue)
      : isPad(isPadValue),
        leftPadding(leftPadValue),
        rightPadding(rightPadValue),
        paddingValue(padValue) {}

  bool isPad = false;
  uint8_t leftPadding = 0;
  uint8_t rightPadding = 0;
  T paddingValue = {};
};

}  // namespace AscendC

#endif  // MKV_ASCENDC_HOST_PARAMETERS_H_
