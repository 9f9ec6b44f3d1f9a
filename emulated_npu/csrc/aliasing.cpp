// SPDX-License-Identifier: Apache-2.0
#include "aliasing.h"

#include "allocator.h"
#include "blocks.h"
#include "device_state.h"
#include "recording.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/TensorImpl.h>
#include <sys/mman.h>

#include <cstring>

namespace emulated_npu {

namespace {

// Scratch memory of larger operands starts as zeros instead of their content.
constexpr size_t kLargestCopiedScratch = 1 << 20;

// Deleter of a CPU alias; also its mark, by which an alias is told from other CPU memory.
void release_npu_storage(void* context) {
  delete static_cast<c10::Storage*>(context);
}

// Memory that a recorded launch writes to instead of an operand's own.
struct Scratch {
  c10::Storage npu_storage;
  void* data;
  size_t bytes;
};

void release_scratch(void* context) {
  auto* scratch = static_cast<Scratch*>(context);
  munmap(scratch->data, scratch->bytes);
  delete scratch;
}

// The npu storage that a CPU storage is an alias of, or null.
const c10::Storage* aliased_npu_storage(const c10::Storage& cpu_storage) {
  if (const auto* scratch = cpu_storage.data_ptr().cast_context<Scratch>(&release_scratch)) {
    return &scratch->npu_storage;
  }
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

c10::Storage scratch_storage(const c10::Storage& npu_storage) {
  const size_t bytes = npu_storage.nbytes();
  // Pages of zeros that take no memory before they are written.
  void* data = mmap(
      nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(data != MAP_FAILED, "the host has no room for ", bytes, " bytes of scratch memory");
  if (bytes <= kLargestCopiedScratch) {
    std::memcpy(data, npu_storage.data(), bytes);
  }
  c10::DataPtr owner(
      data, new Scratch{npu_storage, data, bytes}, &release_scratch,
      c10::Device(c10::DeviceType::CPU));
  return c10::Storage(
      c10::Storage::use_byte_size_t(), bytes, std::move(owner), c10::GetCPUAllocator(),
      /*resizable=*/true);
}

at::Tensor scratch_alias(const at::Tensor& tensor) {
  const auto tape = current_tape();
  if (!is_npu(tensor) || tape == nullptr || !needs_scratch(tensor.storage(), *tape)) {
    return cpu_alias(tensor);
  }
  return tensor_over(scratch_storage(tensor.storage()), tensor);
}

bool needs_scratch(const c10::Storage& npu_storage, const Tape& tape) {
  return npu_storage.nbytes() > 0 && !is_block_of_tape(npu_storage.data(), tape.id);
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
          adopt_block(tensor.storage(), index), device_allocator(), /*resizable=*/true),
      tensor);
}

bool aliases_npu_memory(const at::Tensor& tensor) {
  return is_cpu(tensor) && aliased_npu_storage(tensor.storage()) != nullptr;
}

at::Tensor copy_to_npu(const at::Tensor& tensor, c10::DeviceIndex device) {
  const auto& source = tensor.storage();
  c10::DataPtr data = allocate_block(source.nbytes(), resolve_index(device));
  if (source.nbytes() > 0) {
    std::memcpy(data.get(), source.data(), source.nbytes());
  }
  return tensor_over(
      c10::Storage(
          c10::Storage::use_byte_size_t(), source.nbytes(), std::move(data), device_allocator(),
          /*resizable=*/true),
      tensor);
}

}  // namespace emulated_npu
