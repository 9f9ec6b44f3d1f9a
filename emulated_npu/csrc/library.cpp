// SPDX-License-Identifier: Apache-2.0
// torch.ops.emulated_npu: what Python asks of the device besides PyTorch's own interfaces.
//
// A PyTorch operator library rather than a Python extension module: it needs no Python headers to
// build (Debian ships them apart), and one build serves every Python version.
#include "aliasing.h"
#include "blocks.h"
#include "counters.h"
#include "device_state.h"
#include "generator.h"
#include "hooks.h"
#include "recording.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

namespace emulated_npu {

namespace {

void initialize(int64_t device_count, int64_t memory_bytes, bool strict) {
  TORCH_CHECK(
      device_count >= 1 && device_count <= kMaxDevices, "the number of emulated devices is ",
      device_count, "; allowed: 1 to ", kMaxDevices);
  TORCH_CHECK(
      memory_bytes > 0, "the memory of an emulated device is ", memory_bytes,
      " bytes; it must be positive");
  settings().device_count = static_cast<int>(device_count);
  settings().memory_bytes = memory_bytes;
  settings().strict = strict;
  register_with_torch();
}

c10::Dict<std::string, int64_t> launches() {
  c10::Dict<std::string, int64_t> result;
  for (const auto& [name, count] : counts().launches) {
    result.insert(name, count);
  }
  return result;
}

c10::Dict<std::string, int64_t> graph_launches() {
  c10::Dict<std::string, int64_t> result;
  for (const auto& [name, count] : counts().graph_launches) {
    result.insert(name, count);
  }
  return result;
}

std::tuple<int64_t, int64_t> copied_bytes() {
  const auto now = counts();
  return {now.bytes_to_device, now.bytes_to_host};
}

// For kernels that run now. What is recorded uses addresses, so a kernel that forgot about
// recording is noticed here.
at::Tensor cpu_alias_to_run(const at::Tensor& tensor) {
  TORCH_CHECK(
      !is_npu(tensor) || current_tape() == nullptr, "emulated NPU: device memory is used at ",
      calling_place(), " while the stream records; such a launch must be recorded");
  return cpu_alias(tensor);
}

at::Tensor npu_alias_on(const at::Tensor& tensor, int64_t device) {
  return npu_alias(tensor, static_cast<c10::DeviceIndex>(device));
}

at::Generator default_generator_of(int64_t device) {
  return default_generator(static_cast<c10::DeviceIndex>(device));
}

void set_strict(bool strict) {
  settings().strict = strict;
}

void set_fills(int64_t fresh, int64_t captured) {
  settings().fresh_fill = static_cast<int>(fresh);
  settings().captured_fill = static_cast<int>(captured);
}

}  // namespace

// Kernels are given with the definition, for all dispatch keys at once: they must not pass through
// autograd, whose bookkeeping would treat an alias as a new tensor.
TORCH_LIBRARY(emulated_npu, library) {
  library.def("initialize(int device_count, int memory_bytes, bool strict) -> ()", &initialize);
  library.def("set_strict(bool strict) -> ()", &set_strict);
  library.def("set_fills(int fresh, int captured) -> ()", &set_fills);
  library.def("cpu_alias(Tensor tensor) -> Tensor", &cpu_alias_to_run);
  library.def("npu_alias(Tensor tensor, int device=-1) -> Tensor", &npu_alias_on);
  library.def("default_generator(int device) -> Generator?", &default_generator_of);
  library.def("map_block(int address) -> ()", &map_block);
  library.def("unmap_block(int address) -> ()", &unmap_block);
  library.def("launches() -> Dict(str, int)", &launches);
  library.def("graph_launches() -> Dict(str, int)", &graph_launches);
  library.def("copied_bytes() -> (int, int)", &copied_bytes);
  library.def("reset_counts() -> ()", &reset_counts);
}

}  // namespace emulated_npu
