// SPDX-License-Identifier: Apache-2.0
// What PyTorch's rules for devices say about an operator call, read from its schema and arguments.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace emulated_npu {

using Arguments = c10::ArrayRef<c10::IValue>;

// Throws, in PyTorch's words, when tensor operands lie on different devices. Allowed, as on CUDA:
// CPU tensors without dimensions, and CPU index tensors in x[indices].
void check_operand_devices(const c10::OperatorHandle& op, Arguments arguments);

// Whether the host must read device memory before the call can return, although the operator gives
// back no number: the shape of the result depends on the data, or the result is a host value.
// Such a call stops the host on real hardware as .item() does. (Indexing with a mask is seen by the
// nonzero that PyTorch makes of it.)
bool waits_for_data(const c10::OperatorHandle& op, Arguments arguments);

// Why a call cannot be recorded; empty when it can: its result or its shape depends on data of the
// device, or it takes a tensor of the host, whose content would have to be copied first.
std::string why_not_recorded(const c10::OperatorHandle& op, Arguments arguments);

}  // namespace emulated_npu
