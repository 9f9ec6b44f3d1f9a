// SPDX-License-Identifier: Apache-2.0
// The boxed fallback: every ATen operator without a kernel of its own runs the CPU kernel on CPU
// aliases of its npu operands, and its results become npu tensors.
//
// PyTorch's own at::native::cpu_fallback copies operands to the CPU and back. That would break the
// identity of in-place and out= results, and make every launch look like copies.
#include "aliasing.h"
#include "counters.h"
#include "device_state.h"
#include "generator.h"
#include "operand_rules.h"

#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <vector>

namespace mkv::emulator {

namespace {

// The operands of one call, each npu tensor beside its CPU alias.
class Operands {
 public:
  // Replaces npu tensors, devices and generators in `arguments` by their CPU counterparts.
  Operands(const c10::FunctionSchema& schema, torch::jit::Stack& stack, size_t first) {
    for (size_t position = 0; position < schema.arguments().size(); ++position) {
      replace(stack[first + position]);
    }
    for (size_t position = 0; position < schema.arguments().size(); ++position) {
      supply_generator(schema.arguments()[position], stack[first + position]);
    }
  }

  // Gives npu operands the storage and shape that the CPU kernel gave their aliases (out=, resize).
  void take_back_changes() const {
    for (const auto& pair : pairs_) {
      take_back_storage(pair);
      auto* impl = pair.npu.unsafeGetTensorImpl();
      if (pair.cpu.sizes() != pair.npu.sizes() || pair.cpu.strides() != pair.npu.strides() ||
          pair.cpu.storage_offset() != pair.npu.storage_offset()) {
        impl->set_sizes_and_strides(
            pair.cpu.sizes(), pair.cpu.strides(), pair.cpu.storage_offset());
      }
    }
  }

  void replace_result(c10::IValue& value) const {
    if (value.isTensor()) {
      value = result(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> results;
      for (const at::Tensor& tensor : value.toTensorList()) {
        results.push_back(result(tensor));
      }
      value = c10::IValue(c10::List<at::Tensor>(results));
    }
  }

 private:
  struct Pair {
    at::Tensor npu;
    at::Tensor cpu;
  };

  c10::DeviceIndex device() const {
    return resolve_index(device_);
  }

  void note_device(c10::Device device) {
    if (device_ < 0) {
      device_ = resolve_index(device.index());
    }
  }

  at::Tensor alias(const at::Tensor& tensor) {
    if (!is_npu(tensor)) {
      if (tensor.defined()) {
        host_operands_.push_back(tensor);
      }
      return tensor;
    }
    note_device(tensor.device());
    const Pair* sharing = nullptr;
    for (const auto& pair : pairs_) {
      if (pair.npu.is_same(tensor)) {
        return pair.cpu;
      }
      if (pair.npu.storage().is_alias_of(tensor.storage())) {
        sharing = &pair;
      }
    }
    // Operands that share npu memory must share a CPU storage too: kernels check for overlap by it.
    const auto storage =
        sharing != nullptr ? sharing->cpu.storage() : cpu_alias_storage(tensor.storage());
    pairs_.push_back({tensor, tensor_over(storage, tensor)});
    return pairs_.back().cpu;
  }

  void replace(c10::IValue& value) {
    if (value.isTensor()) {
      value = alias(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& tensor : value.toTensorList()) {
        tensors.push_back(alias(tensor));
      }
      value = c10::IValue(c10::List<at::Tensor>(tensors));
    } else if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> tensors;
      for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
        tensors.push_back(
            tensor.has_value() ? std::optional<at::Tensor>(alias(*tensor)) : std::nullopt);
      }
      value = c10::IValue(tensors);
    } else if (value.isDevice() && value.toDevice().type() == kDeviceType) {
      note_device(value.toDevice());
      value = c10::Device(c10::DeviceType::CPU);
    }
  }

  // Random operators draw from the device's generator, so that torch.npu.manual_seed governs them.
  void supply_generator(const c10::Argument& argument, c10::IValue& value) {
    if (value.isGenerator()) {
      const auto generator = value.toGenerator();
      TORCH_CHECK(
          generator.device().type() == kDeviceType,
          "Expected a 'npu' device type for generator but found '", generator.device().type(),
          "'. Make it with torch.Generator(\"npu\").");
      value = cpu_engine_for_draw(generator);
    } else if (value.isNone() && argument.name() == "generator") {
      value = cpu_engine_for_draw(default_generator(device()));
    }
  }

  void take_back_storage(const Pair& pair) const {
    const auto& now = pair.cpu.storage();
    auto* npu_storage = pair.npu.storage().unsafeGetStorageImpl();
    if (now.data() == npu_storage->data() && now.nbytes() == npu_storage->nbytes()) {
      return;
    }
    npu_storage->set_data_ptr_noswap(adopt_cpu_memory(now, pair.npu.device().index()));
    npu_storage->set_nbytes(now.nbytes());
  }

  at::Tensor result(const at::Tensor& tensor) const {
    if (!is_cpu(tensor)) {
      return tensor;
    }
    for (const auto& pair : pairs_) {
      if (pair.cpu.is_same(tensor)) {
        return pair.npu;
      }
    }
    for (const auto& host : host_operands_) {
      if (host.is_same(tensor)) {
        return tensor;
      }
    }
    for (const auto& pair : pairs_) {
      if (pair.cpu.storage().is_alias_of(tensor.storage())) {
        return tensor_over(pair.npu.storage(), tensor);
      }
    }
    return npu_alias(tensor, device());
  }

  std::vector<Pair> pairs_;
  std::vector<at::Tensor> host_operands_;
  c10::DeviceIndex device_ = -1;
};

void run_on_cpu(
    const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t first = stack->size() - schema.arguments().size();
  const Arguments arguments(stack->data() + first, schema.arguments().size());
  if (settings().strict) {
    check_operand_devices(op, arguments);
  }
  const bool waits = waits_for_data(op, arguments);
  record_launch(schema.name());

  const Operands operands(schema, *stack, first);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  operands.take_back_changes();

  const size_t first_result = stack->size() - schema.returns().size();
  for (size_t position = first_result; position < stack->size(); ++position) {
    operands.replace_result((*stack)[position]);
  }
  if (waits) {
    record_host_read(static_cast<int64_t>(sizeof(int64_t)), /*asynchronous=*/false);
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
}

}  // namespace mkv::emulator
