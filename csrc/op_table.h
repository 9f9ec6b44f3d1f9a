// SPDX-License-Identifier: Apache-2.0
// The ops with the signatures of their schemas, over any library of kernels.
//
// `Kernels` has a static function run() for the arguments of each op; they were checked before.
#pragma once

#include "op_checks.h"

#include <torch/library.h>

namespace mkv::ops {

#define MKV_TYPE(kind, name, ...) , kind::Type
#define MKV_ADD(kind, name, ...) .template add<kind>(#name)

template <typename Kernels>
struct OpTable {
  // One op as a function of the types in its list.
  template <typename Given, typename... Types>
  static void call(Types... arguments) {
    const Given given{arguments...};
    check(given);
    Kernels::run(given);
  }

  // Give one op of torch.ops.mkv_ascend its kernel for a device, for the life of the process.
  static void install(const std::string& name, c10::DispatchKey key) {
    static torch::Library library(torch::Library::IMPL, "mkv_ascend", key, __FILE__, __LINE__);
#define MKV_INSTALL(op, Given, LIST)                         \
  if (name == #op) {                                         \
    library.impl(#op, &OpTable::call<Given LIST(MKV_TYPE)>); \
    return;                                                  \
  }
    MKV_OPS(MKV_INSTALL)
#undef MKV_INSTALL
    TORCH_CHECK_VALUE(false, "there is no native kernel ", name);
  }

  // The kernels as functions of a namespace of their own, for tests and for checks around them.
  static void define(torch::Library& library) {
#define MKV_DEFINE(op, Given, LIST) \
  library.def(Schema(#op) LIST(MKV_ADD).text().c_str(), &OpTable::call<Given LIST(MKV_TYPE)>);
    MKV_OPS(MKV_DEFINE)
#undef MKV_DEFINE
  }
};

#undef MKV_TYPE
#undef MKV_ADD

}  // namespace mkv::ops
