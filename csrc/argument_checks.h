// SPDX-License-Identifier: Apache-2.0
// Checks of arguments at the binding, with the messages of mkv_ascend/ops/checks.py.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace mkv::ops {

constexpr int64_t kAnySize = -1;

// One of two dtypes, or twice the only one.
struct Dtypes {
  at::ScalarType first;
  at::ScalarType second;
};

constexpr Dtypes kInt32 = {at::kInt, at::kInt};
constexpr Dtypes kIndex = {at::kInt, at::kLong};
constexpr Dtypes kMask = {at::kChar, at::kBool};
constexpr Dtypes kInt64 = {at::kLong, at::kLong};

// Collects the tensors of one call, and refuses what the op does not take.
class Arguments {
 public:
  explicit Arguments(const char* op) : op_(op) {}

  template <typename... Words>
  void require(bool holds, const Words&... words) const {
    TORCH_CHECK_VALUE(holds, "mkv_ascend::", op_, ": ", words...);
  }

  void tensor(
      const std::string& name, const at::Tensor& tensor, Dtypes dtypes,
      std::initializer_list<int64_t> shape) {
    require(
        has_dtype(tensor, dtypes), name, " is ", name_of(tensor.scalar_type()), "; it must be ",
        names_of(dtypes));
    require(
        has_shape(tensor, shape), name, " has the shape ", tuple_of(tensor.sizes(), false),
        "; it must be ", tuple_of(shape, true));
    require(
        tensor.dim() == 0 || tensor.size(-1) <= 1 || tensor.stride(-1) == 1, name,
        " has the strides ", tuple_of(tensor.strides(), false),
        "; its last dimension must be dense (stride 1): call contiguous() or take another view");
    on_one_device(name, tensor);
  }

  void tensor(
      const std::string& name, const std::optional<at::Tensor>& maybe, Dtypes dtypes,
      std::initializer_list<int64_t> shape) {
    if (maybe.has_value()) {
      tensor(name, *maybe, dtypes, shape);
    }
  }

  // What their list does not say of block tables.
  void tables(const std::vector<at::Tensor>& tables) const {
    require(!tables.empty(), "block_tables is empty; it must hold one for each KV group");
    for (size_t index = 0; index < tables.size(); ++index) {
      const at::Tensor& table = tables[index];
      require(
          table.dim() != 2 || table.size(1) > 0, item("block_tables", index), " has the shape ",
          tuple_of(table.sizes(), false), "; it must have a column");
    }
  }

  void model_length(int64_t max_model_len) const {
    require(
        max_model_len > 0 && max_model_len < (int64_t{1} << 31), "max_model_len is ", max_model_len,
        "; it must be 1 to 2147483647");
  }

  // Dimensions from `first` on have no gaps between their elements.
  void dense(
      const std::string& name, const at::Tensor& tensor, int64_t first, const char* what) const {
    int64_t expected = 1;
    for (int64_t dimension = tensor.dim() - 1; dimension >= first; --dimension) {
      require(
          tensor.size(dimension) == 1 || tensor.stride(dimension) == expected, name,
          " has the strides ", tuple_of(tensor.strides(), false), "; ", what, " must be dense");
      expected *= tensor.size(dimension);
    }
  }

  void on_one_device(const std::string& name, const at::Tensor& tensor) {
    if (first_name_.empty()) {
      first_name_ = name;
      device_ = tensor.device();
    }
    require(
        tensor.device() == device_, name, " is on ", tensor.device(), ", ", first_name_, " on ",
        device_, "; all tensors must be on one device");
  }

  static std::string item(const char* list, size_t index) {
    return std::string(list) + "[" + std::to_string(index) + "]";
  }

  static std::string tuple_of(at::IntArrayRef sizes, bool any) {
    std::string text = "(";
    for (size_t place = 0; place < sizes.size(); ++place) {
      text += place > 0 ? ", " : "";
      text += any && sizes[place] == kAnySize ? "any" : std::to_string(sizes[place]);
    }
    return text + (sizes.size() == 1 && !any ? ",)" : ")");
  }

  static std::string name_of(at::ScalarType dtype) {
    switch (dtype) {
      case at::kInt:
        return "int32";
      case at::kLong:
        return "int64";
      case at::kChar:
        return "int8";
      case at::kBool:
        return "bool";
      case at::kFloat:
        return "float32";
      case at::kHalf:
        return "float16";
      case at::kBFloat16:
        return "bfloat16";
      default:
        return c10::toString(dtype);
    }
  }

 private:
  static bool has_dtype(const at::Tensor& tensor, Dtypes dtypes) {
    return tensor.scalar_type() == dtypes.first || tensor.scalar_type() == dtypes.second;
  }

  static bool has_shape(const at::Tensor& tensor, at::IntArrayRef shape) {
    if (tensor.dim() != static_cast<int64_t>(shape.size())) {
      return false;
    }
    for (size_t place = 0; place < shape.size(); ++place) {
      if (shape[place] != kAnySize && shape[place] != tensor.size(static_cast<int64_t>(place))) {
        return false;
      }
    }
    return true;
  }

  static std::string names_of(Dtypes dtypes) {
    const auto first = name_of(dtypes.first);
    return dtypes.first == dtypes.second ? first : first + " or " + name_of(dtypes.second);
  }

  const char* op_;
  std::string first_name_;
  c10::Device device_ = c10::kCPU;
};

}  // namespace mkv::ops
