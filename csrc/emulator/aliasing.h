// SPDX-License-Identifier: Apache-2.0
// Two names for one memory: an npu tensor seen as a CPU tensor, and a CPU tensor that becomes an
// npu tensor. Nothing is copied either way.
//
// Ownership: a CPU alias storage keeps the npu storage alive; an npu storage made from a CPU result
// keeps the CPU storage alive and is charged to the device's memory until it dies. Turning a CPU
// alias back into an npu tensor finds the npu storage it came from, so views of npu tensors made on
// the CPU side stay views, and no memory is charged twice.
#pragma once

#include <ATen/core/Tensor.h>

namespace mkv::emulator {

inline bool is_npu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == c10::DeviceType::PrivateUse1;
}

inline bool is_cpu(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().is_cpu();
}

// A tensor over `storage` with the dtype, shape, strides and offset of `like`.
at::Tensor tensor_over(const c10::Storage& storage, const at::Tensor& like);

// A CPU storage over the memory of an npu storage.
c10::Storage cpu_alias_storage(const c10::Storage& npu_storage);

// Context for an npu storage that owns a CPU storage: charged on `device` while it lives.
c10::DataPtr adopt_cpu_memory(const c10::Storage& cpu_storage, c10::DeviceIndex device);

// The npu tensor as a CPU tensor; a tensor of another device comes back unchanged.
at::Tensor cpu_alias(const at::Tensor& tensor);

// The CPU tensor as an npu tensor (on the current device when `device` is negative); a tensor of
// another device comes back unchanged. Throws c10::OutOfMemoryError like an allocation.
at::Tensor npu_alias(const at::Tensor& tensor, c10::DeviceIndex device);

}  // namespace mkv::emulator
