// SPDX-License-Identifier: Apache-2.0
// The AscendC kernels for NPU tensors: launched through torch_npu's task queue, on the current
// stream. Nothing is allocated, waited for or read back here, so a launch can be captured.
#include "../op_table.h"
#include "kernel_calls.h"

#include <acl/acl.h>
#include <torch_npu/csrc/core/npu/NPUStream.h>
#include <torch_npu/csrc/framework/OpCommand.h>

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
    command.SetCustomHandler([launch, stream, cores = vector_cores()]() -> int {
      launch(cores, stream);
      return 0;
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
  NpuTable::define(library);
}

}  // namespace mkv::ops
