// SPDX-License-Identifier: Apache-2.0
#include "aliasing.h"

#include "allocator.h"
#include "device_state.h"
#include "memory_ledger.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>

namespace mkv::emulator {

namespace {

// Deleter of a CPU alias; also its mark, by which an alias is told from other CPU memory.
void release_npu_storage(void* context) {
  delete static_cast<c10::Storage*>(context);
}

struct AdoptedMemory {
  c10::Storage cpu_storage;
  c10::DeviceIndex device;
  size_t charged;
};

void release_adopted_memory(void* context) {
  auto* memory = static_cast<AdoptedMemory*>(context);
  MemoryLedger::discharge(memory->device, memory->charged);
  delete memory;
}

// The npu storage that a CPU storage is an alias of, or null.
const c10::Storage* aliased_npu_storage(const c10::Storage& cpu_storage) {
  return cpu_storage.data_ptr().cast_context<c10::Storage>(&release_npu_storage);
}

}  // namespace

at::Tensor tensor_over(const c10::Storage& storage, const at::Tensor& like) {
  const auto key =
      storage.device().is_cpu() ? c10::DispatchKey::CPU : c10::DispatchKey::PrivateUse1;
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), like.strides(), like.storage_offset());
  // Lazy conjugation and negation are marks on the tensor, not on its memory.
  if (like.is_conj()) {
    tensor._set_conj(true);
  }
  if (like.is_neg()) {
    tensor._set_neg(true);
  }
  return tensor;
}

c10::Storage cpu_alias_storage(const c10::Storage& npu_storage) {
  c10::DataPtr data(
      npu_storage.mutable_data(), new c10::Storage(npu_storage), &release_npu_storage,
      c10::Device(c10::DeviceType::CPU));
  return c10::Storage(
      c10::Storage::use_byte_size_t(), npu_storage.nbytes(), std::move(data),
      c10::GetCPUAllocator(),
      /*resizable=*/true);
}

c10::DataPtr adopt_cpu_memory(const c10::Storage& cpu_storage, c10::DeviceIndex device) {
  const size_t charged = MemoryLedger::charge(device, cpu_storage.nbytes());
  return {
      cpu_storage.mutable_data(), new AdoptedMemory{cpu_storage, device, charged},
      &release_adopted_memory, npu(device)};
}

at::Tensor cpu_alias(const at::Tensor& tensor) {
  if (!is_npu(tensor)) {
    return tensor;
  }
  return tensor_over(cpu_alias_storage(tensor.storage()), tensor);
}

at::Tensor npu_alias(const at::Tensor& tensor, c10::DeviceIndex device) {
  if (!is_cpu(tensor)) {
    return tensor;
  }
  if (const auto* original = aliased_npu_storage(tensor.storage())) {
    return tensor_over(*original, tensor);
  }
  const auto index = resolve_index(device);
  return tensor_over(
      c10::Storage(
          c10::Storage::use_byte_size_t(), tensor.storage().nbytes(),
          adopt_cpu_memory(tensor.storage(), index), device_allocator(), /*resizable=*/true),
      tensor);
}

}  // namespace mkv::emulator
