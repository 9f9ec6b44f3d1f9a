// SPDX-License-Identifier: Apache-2.0
// Tensors as the memory and integers that the kernels for CPU tensors take.
#pragma once

#include "argument_checks.h"
#include "cpu/kernels.h"

namespace mkv::ops {

inline bool is_wide(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kLong;
}

inline Indices indices(const at::Tensor& tensor) {
  return {tensor.const_data_ptr(), is_wide(tensor)};
}

inline Indices indices(const std::optional<at::Tensor>& tensor) {
  return tensor.has_value() ? indices(*tensor) : Indices(nullptr, false);
}

inline OutIndices out_indices(const at::Tensor& tensor) {
  return {tensor.mutable_data_ptr(), is_wide(tensor)};
}

inline int32_t* out_int32(const at::Tensor& tensor) {
  return tensor.mutable_data_ptr<int32_t>();
}

inline int8_t* out_mask(const at::Tensor& tensor) {
  return static_cast<int8_t*>(tensor.mutable_data_ptr());
}

// Live requests, cut to the rows that there are.
inline int64_t live_requests(const at::Tensor& num_requests, int64_t rows) {
  return std::clamp<int64_t>(*num_requests.const_data_ptr<int32_t>(), 0, rows);
}

// From the tensors, not from the addresses in the group table: those are for a device's kernels.
inline std::vector<Group> read_groups(
    const std::vector<at::Tensor>& tables, const at::Tensor& group_table) {
  std::vector<Group> groups;
  groups.reserve(tables.size());
  for (size_t index = 0; index < tables.size(); ++index) {
    const at::Tensor& table = tables[index];
    const int64_t block_size =
        group_table
            .const_data_ptr<int64_t>()[static_cast<int64_t>(index) * group_table.stride(0) + 3];
    TORCH_CHECK_VALUE(
        block_size > 0, "group_table gives the block size ", block_size, " for group ", index,
        "; make it with group_table(block_tables, block_sizes)");
    groups.push_back(
        {table.const_data_ptr<int32_t>(), table.size(0), table.stride(0), table.size(1), block_size,
         shift_of(block_size)});
  }
  return groups;
}

}  // namespace mkv::ops
