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

// The same, but all cores where that would keep three of four busy: then an even load counts for
// more than sectors that two cores share.
inline uint32_t LaunchSizeOrAll(int64_t work, int64_t least, uint32_t cores) {
  const uint32_t wanted = LaunchSize(work, least, cores);
  return wanted * 4 < cores * 3 ? wanted : cores;
}

}  // namespace mkv

#endif  // MKV_ASCEND_ASCEND_LAUNCH_SIZE_H_
