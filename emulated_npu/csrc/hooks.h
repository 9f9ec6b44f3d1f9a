// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace emulated_npu {

// Registers allocator and hooks with PyTorch. Must run once, after settings() was filled.
void register_with_torch();

}  // namespace emulated_npu
