// SPDX-License-Identifier: Apache-2.0
// Operators that cannot go through the fallback: they make storages, change metadata in place, or
// cross between host and device.
#include "aliasing.h"
#include "allocator.h"
#include "counters.h"
#include "device_state.h"
#include "host_waits.h"
#include "pinned_memory.h"
#include "recording.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <array>

namespace emulated_npu {

namespace {

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

c10::Device device_or_current(std::optional<at::Device> device) {
  return npu(device.has_value() ? device->index() : c10::DeviceIndex(-1));
}

at::Tensor empty(
    at::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
    std::optional<at::Device> device, std::optional<bool> /*pin_memory*/,
    std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(
      size, device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(
    at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> dtype,
    std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
    std::optional<bool> /*pin_memory*/) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(
      size, stride, device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

// PyTorch's CPU versions of resize_ and set_ only touch metadata and ask the storage's own
// allocator for memory, so they serve here too, provided that the tensor's device is current.
const at::Tensor& resize_(
    const at::Tensor& self, at::IntArrayRef size, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

at::Tensor& set_to_storage(
    at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
    at::IntArrayRef stride) {
  const c10::DeviceGuard guard(self.device());
  return at::native::set_storage_cpu_(self, std::move(source), offset, size, stride);
}

at::Tensor& set_to_whole_storage(at::Tensor& self, at::Storage source) {
  return at::native::set_(self, std::move(source));
}

at::Tensor& set_to_tensor(at::Tensor& self, const at::Tensor& source) {
  return at::native::set_tensor_(self, source);
}

at::Tensor& set_to_nothing(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  c10::Storage nothing(
      c10::Storage::use_byte_size_t(), 0, device_allocator()->allocate(0), device_allocator(),
      /*resizable=*/true);
  return self.set_(nothing, 0, {0}, {});
}

// A copy that runs again and again. Host memory is read or written at its address each time.
void record_copy(const TapePointer& tape, const at::Tensor& source, const at::Tensor& destination) {
  Record launch;
  launch.name = "aten::copy_";
  std::array<at::Tensor, 2> ends;
  for (size_t end = 0; end < ends.size(); ++end) {
    const auto& tensor = end == 0 ? source : destination;
    if (is_npu(tensor)) {
      launch.operands.push_back(tape->kept(tensor));
      ends[end] = cpu_alias(launch.operands.back());
    } else {
      const auto* address = tensor.storage().data();
      launch.pinned.push_back({address, pinned_serial(address)});
      ends[end] =
          at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), tensor.options());
    }
  }
  if (is_npu(source) && is_npu(destination)) {
    scratch_alias(destination).copy_(cpu_alias(source));
  }
  launch.run = [source = ends[0], destination = ends[1]] { destination.copy_(source); };
  tape->add(std::move(launch));
}

// Between host and device only what needs no help of the host can be recorded; null for that.
const char* why_copy_is_not_recorded(
    const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  if (is_npu(source) && is_npu(destination)) {
    return nullptr;
  }
  const auto& host = is_npu(source) ? destination : source;
  if (!non_blocking) {
    return "a blocking copy between host and device";
  }
  if (!is_pinned(host.storage().data())) {
    return "a copy between the device and host memory that is not pinned";
  }
  if (source.dtype() != destination.dtype() || !source.is_contiguous() ||
      !destination.is_contiguous()) {
    return "a copy between host and device that converts the dtype or the layout";
  }
  return nullptr;
}

// Device to device, host to device, and device to host.
at::Tensor copy_from(const at::Tensor& source, const at::Tensor& destination, bool non_blocking) {
  while (const auto tape = current_tape()) {
    const char* reason = why_copy_is_not_recorded(source, destination, non_blocking);
    if (reason == nullptr) {
      record_copy(tape, source, destination);
      return destination;
    }
    wait_for_host_read(reason);
  }
  const auto bytes = static_cast<int64_t>(source.nbytes());
  record_launch("aten::copy_");
  cpu_alias(destination).copy_(cpu_alias(source));
  if (is_cpu(source)) {
    record_copy_to_device(bytes);
  } else if (is_cpu(destination) && bytes > 0) {
    record_copy_to_host(bytes);
    // Into ordinary host memory the host waits even when asked not to, as with CUDA.
    record_host_read(bytes, non_blocking && is_pinned(destination.storage().data()));
  }
  return destination;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& destination) {
  destination.resize_(source.sizes());
  return copy_from(source, destination, /*non_blocking=*/false);
}

// .item(), int(tensor), bool(tensor): one element goes to the host, and the host waits for it.
at::Scalar local_scalar_dense(const at::Tensor& self) {
  wait_for_host_read("a read of one number (.item(), int(tensor), bool(tensor))");
  const auto value = cpu_alias(self).item();
  const auto bytes = static_cast<int64_t>(self.element_size());
  record_copy_to_host(bytes);
  record_host_read(bytes, /*asynchronous=*/false);
  return value;
}

// Memory is never reused before the call that uses it has returned.
void record_stream(at::Tensor& /*self*/, at::Stream /*stream*/) {}

// The "math" way of scaled_dot_product_attention: plain operators that every device has.
int64_t choose_attention_math(
    const at::Tensor& /*query*/, const at::Tensor& /*key*/, const at::Tensor& /*value*/,
    const std::optional<at::Tensor>& /*mask*/, double /*dropout*/, bool /*is_causal*/,
    std::optional<double> /*scale*/, bool /*enable_gqa*/) {
  return 0;
}

// PyTorch sends convolutions of an out-of-tree backend here; the fallback would find no CPU kernel.
at::Tensor convolution(
    const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
    at::IntArrayRef stride, at::IntArrayRef padding, at::IntArrayRef dilation, bool transposed,
    at::IntArrayRef output_padding, int64_t groups) {
  const auto compute = [=, stride = stride.vec(), padding = padding.vec(),
                        dilation = dilation.vec(), output_padding = output_padding.vec()](
                           const at::Tensor& x, const at::Tensor& w,
                           const std::optional<at::Tensor>& b) {
    const auto offset =
        b.has_value() && b->defined() ? std::optional<at::Tensor>(cpu_alias(*b)) : std::nullopt;
    return at::convolution(
        cpu_alias(x), cpu_alias(w), offset, stride, padding, dilation, transposed, output_padding,
        groups);
  };
  const auto device = input.device().index();
  const auto tape = current_tape();
  if (tape == nullptr) {
    record_launch("aten::convolution");
    return npu_alias(compute(input, weight, bias), device);
  }
  const auto result = copy_to_npu(compute(input, weight, bias), device);
  Record launch;
  launch.name = "aten::convolution";
  launch.operands = {tape->kept(input), tape->kept(weight)};
  if (bias.has_value() && bias->defined()) {
    launch.operands.push_back(tape->kept(*bias));
  }
  launch.run = [compute, operands = launch.operands, target = tape->kept(result)] {
    const auto offset = operands.size() > 2 ? std::optional<at::Tensor>(operands[2]) : std::nullopt;
    cpu_alias(target).copy_(compute(operands[0], operands[1], offset));
  };
  tape->add(std::move(launch));
  return result;
}

}  // namespace

// Whether `tensor.data = other` may be set. As torch_npu has it, `other` may also be on the host:
// vllm-ascend gives parameters of caches values of a checkpoint so.
bool has_compatible_shallow_copy_type(const at::Tensor& self, const at::Tensor& from) {
  auto is_dense = [](const at::Tensor& tensor) {
    return tensor.key_set().has(c10::DispatchKey::CPU) ||
           tensor.key_set().has(c10::DispatchKey::PrivateUse1);
  };
  return self.key_set() == from.key_set() || (is_dense(self) && is_dense(from));
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl(
      "view", static_cast<at::Tensor (*)(const at::Tensor&, at::IntArrayRef)>(&at::native::view));
  library.impl("unfold", &at::native::unfold);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("resize_", &resize_);
  library.impl("set_.source_Storage_storage_offset", &set_to_storage);
  library.impl("set_.source_Storage", &set_to_whole_storage);
  library.impl("set_.source_Tensor", &set_to_tensor);
  library.impl("set_", &set_to_nothing);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("_local_scalar_dense", &local_scalar_dense);
  library.impl("record_stream", &record_stream);
  library.impl("_fused_sdp_choice", &choose_attention_math);
  library.impl("convolution_overrideable", &convolution);
  library.impl("_has_compatible_shallow_copy_type", &has_compatible_shallow_copy_type);
}

// PyTorch resolves a lazily conjugated or negated operand by copying it, and copies come here; the
// CPU copy resolves the marks itself, so they must pass. Otherwise a copy would ask for itself for
// ever.
TORCH_LIBRARY_IMPL(aten, Conjugate, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, library) {
  library.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace emulated_npu
