// SPDX-License-Identifier: Apache-2.0
// How many cores a launch takes. Plain C++ for the host: what stands in common.h is for device code
// only, and a function of the host may not call it.
#ifndef MKV_ASCEND_ASCEND_LAUNCH_SIZE_H_
#define MKV_ASCEND_ASCEND_LAUNCH_SIZE_H_

#include <cstdint>

namespace mkv {

// One core for each `least` units of work, the last one begun counted; 1 to `cores`.
inline uint32_t LaunchSize(int64_t work, int64_t least, uint32_t cores) {
  const int64_t wanted = work > 0 ? (work + least - 1) / least : 1;
  return wanted < cores ? static_cast<uint32_t>(wanted) : cores;
}

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_LAUNCH_SIZE_H_
