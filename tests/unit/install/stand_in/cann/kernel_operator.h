// SPDX-License-Identifier: Apache-2.0
// The kernels' header of the stand-in: that of the checker, in the form in which a launch is <<<>>>
// and a kernel's qualifiers are seen in its text.
#pragma once

#include "checker.h"  // written by the test: names the checker's kernel_operator.h

#undef MKV_ASCENDC_CHECKER
#undef __global__
#define __global__ __attribute__((stand_in_kernel))
#undef KERNEL_TASK_TYPE_DEFAULT
#define KERNEL_TASK_TYPE_DEFAULT(kind) constexpr auto stand_in_kernel_type = kind

extern "C" int stand_in_region(int index, const void** address, uint64_t* bytes, int* writable);

// A kernel on the checker, which may touch what the test named; 0, or CANN's number for a fault.
template <typename Body>
int stand_in_run(const char* name, uint32_t blocks, Body body) {
  auto& device = ascendc_host::Device::OfThisThread();
  device.ClearRegions();
  const void* address = nullptr;
  uint64_t bytes = 0;
  int writable = 0;
  for (int index = 0; stand_in_region(index, &address, &bytes, &writable) != 0; ++index) {
    device.AddRegion("region", address, bytes, writable != 0);
  }
  ascendc_host::Launch(name, blocks, body);
  return device.report().problems.empty() ? 0 : 507015;
}
