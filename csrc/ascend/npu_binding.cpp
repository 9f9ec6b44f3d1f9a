// SPDX-License-Identifier: Apache-2.0
// The AscendC kernels for NPU tensors: launched through torch_npu's task queue, on the current
// stream. No device memory is allocated, nothing is waited for or read back, here and in CANN's
// launch stub (launch_watch.cpp), so a launch can be captured.
#include "../op_table.h"
#include "kernel_calls.h"
#include "launch_watch.h"

#include <acl/acl.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>
#include <torch_npu/csrc/framework/OpCommand.h>

#include <iostream>

namespace mkv::ops {

namespace {

// Vector cores of the current device's kind; asked for once, since it waits for the driver.
uint32_t vector_cores() {
  static const uint32_t cores = [] {
    int32_t device = 0;
    int64_t count = 0;
    TORCH_CHECK(aclrtGetDevice(&device) == ACL_SUCCESS, "mkv_ascend: no current NPU");
    TORCH_CHECK(
        aclGetDeviceCapability(device, ACL_DEVICE_INFO_VECTOR_CORE_NUM, &count) == ACL_SUCCESS &&
            count > 0,
        "mkv_ascend: NPU ", device, " does not say how many vector cores it has");
    return static_cast<uint32_t>(count);
  }();
  return cores;
}

struct NpuRunner {
  template <typename Launch>
  static void call(const char* op, const std::vector<Touched>& /*touched*/, const Launch& launch) {
    // false: do not wait until the task queue is empty.
    void* stream = c10_npu::getCurrentNPUStream().stream(false);
    at_npu::native::OpCommand command;
    command.Name(op);
    // On the queue's thread: its result ends the queue, and torch_npu raises with the op's name.
    // The text is printed here, because torch_npu keeps those of handlers in a log.
    command.SetCustomHandler([op, launch, stream, cores = vector_cores()]() -> int {
      forget_launch();
      launch(cores, stream);
      const LaunchResult result = launch_result();
      if (result.error != 0) {
        std::cerr << "mkv_ascend::" << op << " wrote nothing: " << result.problem << std::endl;
      }
      return result.error;
    });
    command.Run();
  }
};

using NpuTable = OpTable<AscendKernels<NpuRunner>>;

void install(const std::string& name) {
  NpuTable::install(name, c10::DispatchKey::PrivateUse1);
}

}  // namespace

TORCH_LIBRARY(mkv_ascend_npu, library) {
  library.def("install(str name) -> ()", &install);
  library.def("built_for() -> str", [] { return std::string(MKV_BUILT_FOR); });
  library.def("chip() -> str", &chip_name);
  library.def("problem() -> str", &registration_problem);
  NpuTable::define(library);
}

}  // namespace mkv::ops
