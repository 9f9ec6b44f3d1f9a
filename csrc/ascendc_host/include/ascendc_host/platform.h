// SPDX-License-Identifier: Apache-2.0
// What the Ascend compiler and its headers define before the first class: qualifiers, scalar types,
// pipes, events and positions. Values and spellings follow the public AscendC documentation of
// CANN 9.1, arch 2201 (Ascend 910B and 910C, vector cores).
#ifndef MKV_ASCENDC_HOST_PLATFORM_H_
#define MKV_ASCENDC_HOST_PLATFORM_H_

#include <cstdint>

#define __NPU_ARCH__ 2201
#define __CCE_AICORE__ 220

// An ordinary compiler knows no cores and no address spaces; tools/check_kernels.py defines these
// as attributes that clang checks.
#ifndef __aicore__
#define __aicore__
#define __global__
#define __gm__
#define __ubuf__
#endif
#define GM_ADDR __gm__ uint8_t*

// Kernels here run on vector cores only; other kinds have no model.
enum KernelMetaType { KERNEL_TYPE_AIV_ONLY = 0 };
#define KERNEL_TASK_TYPE_DEFAULT(kind) \
  static_assert((kind) == KERNEL_TYPE_AIV_ONLY, "ascendc_host models vector-only kernels")

enum pipe_t : uint8_t { PIPE_S, PIPE_V, PIPE_MTE2, PIPE_MTE3, PIPE_ALL };

enum event_t : int32_t {
  EVENT_ID0,
  EVENT_ID1,
  EVENT_ID2,
  EVENT_ID3,
  EVENT_ID4,
  EVENT_ID5,
  EVENT_ID6,
  EVENT_ID7
};

// Two-byte floats are moved, not computed with: the checker has no arithmetic of their precision.
struct half {
  uint16_t bits;
};
struct bfloat16_t {
  uint16_t bits;
};

namespace AscendC {

using TEventID = int8_t;

// The events between the four pipes of a vector core. NAME is FROM_TO.
enum class HardEvent : uint8_t {
  MTE2_V,
  V_MTE2,
  MTE3_V,
  V_MTE3,
  MTE3_MTE2,
  MTE2_MTE3,
  S_V,
  V_S,
  S_MTE2,
  MTE2_S,
  S_MTE3,
  MTE3_S,
  V_V,
  MAX
};

enum class TPosition : uint8_t { GM, VECIN, VECOUT, VECCALC, MAX };
using QuePosition = TPosition;

enum class RoundMode : uint8_t {
  CAST_NONE,
  CAST_RINT,
  CAST_FLOOR,
  CAST_CEIL,
  CAST_ROUND,
  CAST_TRUNC,
  CAST_ODD
};

enum class CacheLine : uint64_t { SINGLE_CACHE_LINE = 0, ENTIRE_DATA_CACHE };
enum class DcciDst : uint64_t { CACHELINE_ALL = 0, CACHELINE_UB, CACHELINE_OUT, CACHELINE_ATOMIC };

}  // namespace AscendC

namespace ascendc_host {

constexpr int kPipes = 4;
constexpr int kEvents = static_cast<int>(AscendC::HardEvent::MAX);
constexpr int kEventIds = 8;
constexpr uint32_t kBlockBytes = 32;           // unit of UB addresses and of copies
constexpr uint32_t kRepeatBytes = 256;         // what one vector repeat handles
constexpr uint32_t kUbBytes = 192 * 1024;      // the whole unified buffer
constexpr uint32_t kUsableBytes = 184 * 1024;  // below the scratch space of some library calls
constexpr uint32_t kMaximumBuffers = 64;       // of one TPipe
constexpr uint32_t kCacheLineBytes = 64;       // of the scalar unit's data cache

constexpr const char* Name(pipe_t pipe) {
  switch (pipe) {
    case PIPE_S:
      return "S";
    case PIPE_V:
      return "V";
    case PIPE_MTE2:
      return "MTE2";
    case PIPE_MTE3:
      return "MTE3";
    default:
      return "ALL";
  }
}

constexpr pipe_t Source(AscendC::HardEvent event) {
  using E = AscendC::HardEvent;
  switch (event) {
    case E::MTE2_V:
    case E::MTE2_MTE3:
    case E::MTE2_S:
      return PIPE_MTE2;
    case E::MTE3_V:
    case E::MTE3_MTE2:
    case E::MTE3_S:
      return PIPE_MTE3;
    case E::S_V:
    case E::S_MTE2:
    case E::S_MTE3:
      return PIPE_S;
    default:
      return PIPE_V;
  }
}

constexpr pipe_t Destination(AscendC::HardEvent event) {
  using E = AscendC::HardEvent;
  switch (event) {
    case E::V_MTE2:
    case E::MTE3_MTE2:
    case E::S_MTE2:
      return PIPE_MTE2;
    case E::V_MTE3:
    case E::MTE2_MTE3:
    case E::S_MTE3:
      return PIPE_MTE3;
    case E::V_S:
    case E::MTE2_S:
    case E::MTE3_S:
      return PIPE_S;
    default:
      return PIPE_V;
  }
}

}  // namespace ascendc_host

#endif  // MKV_ASCENDC_HOST_PLATFORM_H_
