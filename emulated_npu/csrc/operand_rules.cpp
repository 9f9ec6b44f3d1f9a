// SPDX-License-Identifier: Apache-2.0
#include "operand_rules.h"

#include "aliasing.h"

#include <optional>
#include <string>
#include <unordered_set>

namespace emulated_npu {

namespace {

// Calls `visit(tensor)` for every defined tensor in an argument, in order.
template <typename Visit>
void for_each_tensor(const c10::IValue& argument, Visit visit) {
  if (argument.isTensor()) {
    if (argument.toTensor().defined()) {
      visit(argument.toTensor());
    }
  } else if (argument.isTensorList()) {
    for (const at::Tensor& tensor : argument.toTensorList()) {
      visit(tensor);
    }
  } else if (argument.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : argument.toOptionalTensorVector()) {
      if (tensor.has_value() && tensor->defined()) {
        visit(*tensor);
      }
    }
  }
}

bool takes_host_indices(const std::string& operator_name) {
  static const std::unordered_set<std::string> names = {
      "aten::index",         "aten::index_put",        "aten::index_put_", "aten::_index_put_impl_",
      "aten::_unsafe_index", "aten::_unsafe_index_put"};
  return names.count(operator_name) > 0;
}

}  // namespace

void check_operand_devices(const c10::OperatorHandle& op, Arguments arguments) {
  const auto& schema = op.schema();
  const bool host_indices = takes_host_indices(schema.name());
  std::optional<c10::Device> common;
  for (size_t position = 0; position < arguments.size(); ++position) {
    const auto& name = schema.arguments()[position].name();
    if (host_indices && name == "indices") {
      continue;
    }
    for_each_tensor(arguments[position], [&](const at::Tensor& tensor) {
      if (is_cpu(tensor) && tensor.dim() == 0) {
        return;
      }
      if (!common.has_value()) {
        common = tensor.device();
      }
      TORCH_CHECK(
          tensor.device() == *common,
          "Expected all tensors to be on the same device, but found at least two devices, ",
          *common, " and ", tensor.device(), "! (when checking argument ", name, " in method ",
          schema.name(), "; emulated NPU, strict mode)");
    });
  }
}

bool waits_for_data(const c10::OperatorHandle& op, Arguments arguments) {
  static const std::unordered_set<std::string> always = {
      "aten::nonzero",    "aten::masked_select",      "aten::_unique",  "aten::_unique2",
      "aten::unique_dim", "aten::unique_consecutive", "aten::bincount", "aten::equal"};
  const auto& name = op.schema().name();
  if (always.count(name) > 0) {
    return true;
  }
  if (name == "aten::repeat_interleave") {
    return arguments.back().isNone();  // no output_size given
  }
  return false;
}

std::string why_not_recorded(const c10::OperatorHandle& op, Arguments arguments) {
  const auto& schema = op.schema();
  const bool sized = schema.name() == "aten::repeat_interleave" && !arguments.back().isNone();
  const bool depends = op.hasTag(at::Tag::data_dependent_output) ||
                       (op.hasTag(at::Tag::dynamic_output_shape) && !sized);
  if (depends || waits_for_data(op, arguments)) {
    return schema.name() + ", whose result depends on data of the device,";
  }
  bool takes_host_tensor = false;
  for (const auto& argument : arguments) {
    for_each_tensor(argument, [&](const at::Tensor& tensor) {
      takes_host_tensor = takes_host_tensor || (is_cpu(tensor) && tensor.dim() > 0);
    });
  }
  return takes_host_tensor
             ? schema.name() + " with a host tensor as operand, which must be copied to the device,"
             : "";
}

}  // namespace emulated_npu
