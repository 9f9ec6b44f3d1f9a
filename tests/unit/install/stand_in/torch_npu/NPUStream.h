// SPDX-License-Identifier: Apache-2.0
// Of torch_npu's streams what the binding calls.
#pragma once

namespace c10_npu {

struct NPUStream {
  void* stream(bool /*wait_for_queue*/) const {
    return nullptr;
  }
};

inline NPUStream getCurrentNPUStream() {
  return {};
}

}  // namespace c10_npu
