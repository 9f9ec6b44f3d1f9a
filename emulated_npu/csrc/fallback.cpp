// SPDX-License-Identifier: Apache-2.0
// The boxed fallback: every ATen operator without a kernel of its own runs the CPU kernel on CPU
// aliases of its npu operands, and its results become npu tensors.
//
// PyTorch's own at::native::cpu_fallback copies operands to the CPU and back. That would break the
// identity of in-place and out= results, and make every launch look like copies.
//
// On a stream that records (recording.h) the same is done once more at each replay: a record keeps
// the arguments, with npu tensors by address, and where its results were.
#include "aliasing.h"
#include "blocks.h"
#include "counters.h"
#include "device_state.h"
#include "generator.h"
#include "host_waits.h"
#include "operand_rules.h"
#include "recording.h"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <cstring>
#include <vector>

namespace emulated_npu {

namespace {

// The operands of one call, each npu tensor beside its CPU alias.
class Operands {
 public:
  // Replaces npu tensors, devices and generators in `arguments` by their CPU counterparts. While
  // `recording`, operands that are written are replaced by scratch memory, results are copied to
  // memory of the device, and nothing is drawn from its generators.
  Operands(
      const c10::FunctionSchema& schema, torch::jit::Stack& stack, size_t first,
      const Tape* recording)
      : recording_(recording) {
    if (recording != nullptr) {
      alias_written_first(schema, stack, first);
    }
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

  void replace_result(c10::IValue& value) {
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

  // After the results were replaced: for each tensor in them the new npu tensor, or an undefined
  // one for an operand or a view of one.
  const std::vector<at::Tensor>& new_results() const {
    return new_results_;
  }

  std::vector<at::Tensor> npu_operands() const {
    std::vector<at::Tensor> operands;
    for (const auto& pair : pairs_) {
      operands.push_back(pair.npu);
    }
    return operands;
  }

 private:
  struct Pair {
    at::Tensor npu;
    at::Tensor cpu;
    size_t bytes;  // of the CPU storage before the kernel ran
    bool scratch;
  };

  // Operands that share memory with a written one must find its scratch memory.
  void alias_written_first(
      const c10::FunctionSchema& schema, const torch::jit::Stack& stack, size_t first) {
    aliasing_written_ = true;
    for (size_t position = 0; position < schema.arguments().size(); ++position) {
      const auto* alias_info = schema.arguments()[position].alias_info();
      if (alias_info != nullptr && alias_info->isWrite()) {
        auto unused = stack[first + position];
        replace(unused);
      }
    }
    aliasing_written_ = false;
  }

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
    const bool scratch = sharing != nullptr
                             ? sharing->scratch
                             : aliasing_written_ && needs_scratch(tensor.storage(), *recording_);
    const auto storage = sharing != nullptr ? sharing->cpu.storage()
                         : scratch          ? scratch_storage(tensor.storage())
                                            : cpu_alias_storage(tensor.storage());
    pairs_.push_back({tensor, tensor_over(storage, tensor), storage.nbytes(), scratch});
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
      value = engine_for_draw(generator);
    } else if (value.isNone() && argument.name() == "generator") {
      value = engine_for_draw(default_generator(device()));
    }
  }

  at::Generator engine_for_draw(const at::Generator& generator) const {
    return recording_ != nullptr ? at::detail::createCPUGenerator()
                                 : cpu_engine_for_draw(generator);
  }

  void take_back_storage(const Pair& pair) const {
    const auto& now = pair.cpu.storage();
    auto* npu_storage = pair.npu.storage().unsafeGetStorageImpl();
    const bool moved = !pair.scratch && now.data() != npu_storage->data();
    if (!moved && now.nbytes() == pair.bytes) {
      return;
    }
    const auto device = pair.npu.device().index();
    if (recording_ != nullptr) {
      c10::DataPtr data = allocate_block(now.nbytes(), device);
      std::memcpy(data.get(), now.data(), now.nbytes());
      npu_storage->set_data_ptr_noswap(std::move(data));
    } else {
      npu_storage->set_data_ptr_noswap(adopt_block(now, device));
    }
    npu_storage->set_nbytes(now.nbytes());
  }

  at::Tensor result(const at::Tensor& tensor) {
    const auto found = known_result(tensor);
    if (found.defined() || !tensor.defined()) {
      new_results_.emplace_back();
      return found;
    }
    new_results_.push_back(new_result(tensor));
    return new_results_.back();
  }

  at::Tensor new_result(const at::Tensor& tensor) {
    if (recording_ == nullptr) {
      return npu_alias(tensor, device());
    }
    for (const auto& copied : copied_results_) {
      if (copied.cpu.storage().is_alias_of(tensor.storage())) {
        return tensor_over(copied.npu.storage(), tensor);
      }
    }
    copied_results_.push_back({copy_to_npu(tensor, device()), tensor, 0, false});
    return copied_results_.back().npu;
  }

  // The operand, or the view of one, that a result is; undefined when it is new memory.
  at::Tensor known_result(const at::Tensor& tensor) const {
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
    return {};
  }

  const Tape* recording_;
  bool aliasing_written_ = false;
  std::vector<Pair> pairs_;
  std::vector<Pair> copied_results_;
  std::vector<at::Tensor> host_operands_;
  std::vector<at::Tensor> new_results_;
  c10::DeviceIndex device_ = -1;
};

// An argument as a record keeps it: npu tensors by address, tensors of the host by value.
c10::IValue frozen(const c10::IValue& value, const Tape& tape) {
  const auto kept = [&](const at::Tensor& tensor) {
    return is_npu(tensor) ? tape.kept(tensor) : tensor.defined() ? tensor.clone() : tensor;
  };
  if (value.isTensor()) {
    return kept(value.toTensor());
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorList()) {
      tensors.push_back(kept(tensor));
    }
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      tensors.push_back(tensor.has_value() ? std::optional(kept(*tensor)) : std::nullopt);
    }
    return tensors;
  }
  return value;
}

// A launch that runs again and again: `arguments` frozen, `results` where the new results belong.
void replay(
    const c10::OperatorHandle& op, const std::vector<c10::IValue>& arguments,
    const std::vector<at::Tensor>& results) {
  torch::jit::Stack stack(arguments.begin(), arguments.end());
  const Operands operands(op.schema(), stack, 0, /*recording=*/nullptr);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
  size_t index = 0;
  const auto put = [&](const at::Tensor& result) {
    if (results.at(index).defined()) {
      cpu_alias(results[index]).copy_(result);
    }
    ++index;
  };
  for (const auto& value : stack) {
    if (value.isTensor()) {
      put(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) {
        put(tensor);
      }
    }
  }
}

void record(const TapePointer& tape, const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t first = stack->size() - schema.arguments().size();
  const std::vector<c10::IValue> given(stack->begin() + static_cast<int64_t>(first), stack->end());
  Operands operands(schema, *stack, first, tape.get());
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  operands.take_back_changes();
  for (size_t position = stack->size() - schema.returns().size(); position < stack->size();
       ++position) {
    operands.replace_result((*stack)[position]);
  }
  std::vector<at::Tensor> results;
  bool computes = schema.is_mutable() && !op.hasTag(at::Tag::inplace_view);
  for (const auto& result : operands.new_results()) {
    results.push_back(result.defined() ? tape->kept(result) : result);
    computes = computes || result.defined();
  }
  if (!computes) {
    return;  // a view
  }
  // Frozen only now: a kernel may have given an empty out= operand its memory.
  std::vector<c10::IValue> arguments;
  for (const auto& value : given) {
    arguments.push_back(frozen(value, *tape));
  }
  Record launch;
  launch.name = schema.name();
  for (const auto& operand : operands.npu_operands()) {
    launch.operands.push_back(tape->kept(operand));
  }
  launch.run = [op, arguments = std::move(arguments), results = std::move(results)] {
    replay(op, arguments, results);
  };
  tape->add(std::move(launch));
}

void run_on_cpu(
    const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t first = stack->size() - schema.arguments().size();
  const Arguments arguments(stack->data() + first, schema.arguments().size());
  if (settings().strict) {
    check_operand_devices(op, arguments);
  }
  const bool waits = waits_for_data(op, arguments);
  while (const auto tape = current_tape()) {
    const auto reason = why_not_recorded(op, arguments);
    if (reason.empty()) {
      record(tape, op, stack);
      return;
    }
    wait_for_host_read(reason);
  }
  record_launch(schema.name());

  Operands operands(schema, *stack, first, /*recording=*/nullptr);
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

}  // namespace emulated_npu
