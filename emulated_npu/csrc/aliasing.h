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

namespace emulated_npu {

struct Tape;

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

// A CPU storage as large as an npu storage, for a recorded launch to write to: recording must not
// change memory that was there before. It holds a copy of the content when that is small, and zeros
// else, so that it costs no more than is written. As an npu storage it is the original.
c10::Storage scratch_storage(const c10::Storage& npu_storage);

// Whether a launch that is recorded on `tape` writes to scratch memory in the place of this one:
// all but what was allocated while recording.
bool needs_scratch(const c10::Storage& npu_storage, const Tape& tape);

// The npu tensor as a CPU tensor; a tensor of another device comes back unchanged.
at::Tensor cpu_alias(const at::Tensor& tensor);

// The same for an operand that is written: over scratch memory where the current stream records.
at::Tensor scratch_alias(const at::Tensor& tensor);

// Whether a CPU tensor is over memory of an npu tensor, or over scratch memory for it.
bool aliases_npu_memory(const at::Tensor& tensor);

// A CPU tensor copied to newly allocated memory of the device: a recorded launch must know where
// its results will be.
at::Tensor copy_to_npu(const at::Tensor& tensor, c10::DeviceIndex device);

// The CPU tensor as an npu tensor (on the current device when `device` is negative); a tensor of
// another device comes back unchanged. Throws c10::OutOfMemoryError like an allocation.
at::Tensor npu_alias(const at::Tensor& tensor, c10::DeviceIndex device);

}  // namespace emulated_npu
