// SPDX-License-Identifier: Apache-2.0
// The AscendC kernels for CPU tensors, run and checked by csrc/ascendc_host: whole engine tests on
// the emulated NPU can go through the sources that an NPU runs. A problem is an error.
#include "../op_table.h"
#include "kernel_calls.h"

extern "C" {
void ascendc_host_begin(uint64_t seed);
void ascendc_host_tensor(const char* name, const void* address, uint64_t bytes, int32_t writable);
int64_t ascendc_host_problems();
const char* ascendc_host_report();
}

namespace mkv::ops {

namespace {

constexpr uint32_t kCores = 40;  // vector cores of the smaller Ascend 910B parts

struct HostRunner {
  template <typename Launch>
  static void call(const char* op, const std::vector<Touched>& touched, const Launch& launch) {
    // Another order of cores, and other junk, in each launch; the same ones in each run.
    static thread_local uint64_t seed = 0;
    ascendc_host_begin(seed++);
    for (const Touched& one : touched) {
      ascendc_host_tensor(
          one.name.c_str(), one.tensor.const_data_ptr(), bytes_of(one.tensor), one.written ? 1 : 0);
    }
    launch(kCores, nullptr);
    if (ascendc_host_problems() != 0) {
      // Without the counters of all cores, which follow the problems.
      const std::string report = ascendc_host_report();
      TORCH_CHECK(
          false, "mkv_ascend::", op, ": the checker of AscendC kernels reports ",
          report.substr(0, report.find(", \"cores\"")));
    }
  }

  // From the first to the last element, the gaps of strides included.
  static uint64_t bytes_of(const at::Tensor& tensor) {
    if (tensor.numel() == 0) {
      return 0;
    }
    int64_t reach = 1;
    for (int64_t dimension = 0; dimension < tensor.dim(); ++dimension) {
      reach += (tensor.size(dimension) - 1) * tensor.stride(dimension);
    }
    return static_cast<uint64_t>(reach) * tensor.element_size();
  }
};

using HostTable = OpTable<AscendKernels<HostRunner>>;

// The last launch of this thread as JSON: what was found, and counters per core.
std::string report() {
  return ascendc_host_report();
}

void install(const std::string& name) {
  HostTable::install(name, c10::DispatchKey::CPU);
}

}  // namespace

TORCH_LIBRARY(mkv_ascend_host, library) {
  library.def("install(str name) -> ()", &install);
  library.def("report() -> str", &report);
  HostTable::define(library);
}

}  // namespace mkv::ops
