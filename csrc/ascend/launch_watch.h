// SPDX-License-Identifier: Apache-2.0
// What becomes of a launch behind <<<>>>. In an ascendc_library that is a call of a generated stub
// whose result the compiler drops, and which prints and reports success where it launches nothing.
#pragma once

#include <cstdint>
#include <string>

namespace mkv::ops {

// Name of the present chip by CANN's runtime, empty where it gives none.
std::string chip_name();

// Why no kernel can be launched in this process; empty when they can. Valid once the library is
// loaded: CANN's stub registers its kernels then.
std::string registration_problem();

// Before a launch.
void forget_launch();

// After the launch, on its thread: 0, or an error and what it is.
struct LaunchResult {
  int32_t error;
  std::string problem;
};
LaunchResult launch_result();

}  // namespace mkv::ops
