// SPDX-License-Identifier: Apache-2.0
// A launch: every core in turn, in an order that the seed decides.
#ifndef MKV_ASCENDC_HOST_LAUNCH_H_
#define MKV_ASCENDC_HOST_LAUNCH_H_

#include "core.h"

namespace ascendc_host {

// Runs `body`, the kernel with its arguments, once per core. What was found is in the report of
// this thread's device. A problem that a core cannot go on after ends the launch.
template <typename Body>
void Launch(const char* kernel, int64_t blocks, Body body) {
  auto& device = Device::OfThisThread();
  device.Begin(kernel, blocks);
  if (blocks <= 0) {
    Problem problem;
    problem.kind = "argument";
    problem.message = "a launch of " + std::to_string(blocks) + " cores";
    device.Add(std::move(problem));
    return;
  }
  for (const int64_t index : device.CoreOrder(blocks)) {
    Core core(device, index, blocks);
    Core::Current() = &core;
    bool stopped = false;
    try {
      body();
      core.Finish();
    } catch (const Stop&) {
      stopped = true;
    }
    Core::Current() = nullptr;
    device.report().cores.push_back(core.counters());
    if (stopped) {
      return;
    }
  }
}

}  // namespace ascendc_host

#endif  // MKV_ASCENDC_HOST_LAUNCH_H_
