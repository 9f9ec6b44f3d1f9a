// SPDX-License-Identifier: Apache-2.0
#include "generator.h"

#include "device_state.h"

#include <ATen/CPUGeneratorImpl.h>

#include <vector>

namespace mkv::emulator {

namespace {

class EmulatedGenerator final : public c10::GeneratorImpl {
 public:
  EmulatedGenerator(c10::DeviceIndex device, at::Generator engine)
      : c10::GeneratorImpl(npu(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), engine_(std::move(engine)) {}

  const at::Generator& engine() const {
    return engine_;
  }

  void set_current_seed(uint64_t seed) override {
    engine_.set_current_seed(seed);
  }

  uint64_t current_seed() const override {
    return engine_.current_seed();
  }

  uint64_t seed() override {
    return engine_.seed();
  }

  // Offsets belong to counter-based engines (Philox); the engine here is a Mersenne twister.
  void set_offset(uint64_t /*offset*/) override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "the generator of the emulated NPU has no offset; use set_state");
  }

  uint64_t get_offset() const override {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "the generator of the emulated NPU has no offset; use get_state");
  }

  void set_state(const c10::TensorImpl& state) override {
    engine_.unsafeGetGeneratorImpl()->set_state(state);
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return engine_.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  EmulatedGenerator* clone_impl() const override {
    return new EmulatedGenerator(device().index(), engine_.clone());
  }

  at::Generator engine_;
};

}  // namespace

at::Generator make_generator(c10::DeviceIndex device) {
  return at::make_generator<EmulatedGenerator>(resolve_index(device), at::detail::createCPUGenerator());
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* generators = [] {
    auto* all = new std::vector<at::Generator>();
    for (int index = 0; index < kMaxDevices; ++index) {
      all->push_back(make_generator(static_cast<c10::DeviceIndex>(index)));
    }
    return all;
  }();
  return generators->at(resolve_index(device));
}

at::Generator cpu_engine(const at::Generator& generator) {
  if (!generator.defined() || generator.device().type() != kDeviceType) {
    return generator;
  }
  return static_cast<EmulatedGenerator*>(generator.unsafeGetGeneratorImpl())->engine();
}

}  // namespace mkv::emulator
