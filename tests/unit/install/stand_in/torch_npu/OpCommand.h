// SPDX-License-Identifier: Apache-2.0
// Of torch_npu's OpCommand what the binding calls, without its queue: a handler's result that is
// not 0 becomes an error with the op's name, as torch_npu makes it one of a later call.
#pragma once

#include <c10/util/Exception.h>

#include <functional>
#include <string>

namespace at_npu::native {

class OpCommand {
 public:
  OpCommand& Name(const std::string& name) {
    name_ = name;
    return *this;
  }
  OpCommand& SetCustomHandler(std::function<int()> handler) {
    handler_ = std::move(handler);
    return *this;
  }
  void Run() {
    const int result = handler_();
    TORCH_CHECK(result == 0, "stand-in of torch_npu: ", name_, " returned ", result);
  }

 private:
  std::string name_;
  std::function<int()> handler_;
};

}  // namespace at_npu::native
