// SPDX-License-Identifier: Apache-2.0
#include "generator.h"

#include "device_state.h"

#include <ATen/CPUGeneratorImpl.h>

#include <deque>
#include <vector>

namespace emulated_npu {

namespace {

// How far one operator moves the offset. CUDA and NPU generators count 32-bit numbers drawn per
// thread, four at a time; vLLM takes back the draw of a request by an offset that is four less.
constexpr uint64_t kOffsetPerOperator = 4;

// Draws that can be taken back. vLLM takes back the last one only.
constexpr size_t kRememberedDraws = 8;

class EmulatedGenerator final : public c10::GeneratorImpl {
 public:
  EmulatedGenerator(c10::DeviceIndex device, at::Generator engine)
      : c10::GeneratorImpl(npu(device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        engine_(std::move(engine)) {}

  // The engine for one operator, whose draw can be taken back by set_offset.
  const at::Generator& engine_for_draw() {
    before_draw_.push_back({offset_, engine_.unsafeGetGeneratorImpl()->get_state()});
    if (before_draw_.size() > kRememberedDraws) {
      before_draw_.pop_front();
    }
    offset_ += kOffsetPerOperator;
    return engine_;
  }

  void set_current_seed(uint64_t seed) override {
    forget_draws();
    engine_.set_current_seed(seed);
  }

  uint64_t current_seed() const override {
    return engine_.current_seed();
  }

  uint64_t seed() override {
    forget_draws();
    return engine_.seed();
  }

  // A counter-based engine (Philox) can go to any offset. The Mersenne twister here only goes back
  // to where one of the last operators started.
  void set_offset(uint64_t offset) override {
    if (offset == offset_) {
      return;
    }
    while (!before_draw_.empty() && before_draw_.back().offset > offset) {
      before_draw_.pop_back();
    }
    TORCH_CHECK_NOT_IMPLEMENTED(
        !before_draw_.empty() && before_draw_.back().offset == offset,
        "the generator of the emulated NPU goes back to the start of one of its last ",
        kRememberedDraws, " draws only, not from offset ", offset_, " to ", offset,
        "; use set_state");
    engine_.unsafeGetGeneratorImpl()->set_state(*before_draw_.back().state);
    offset_ = offset;
    before_draw_.pop_back();
  }

  uint64_t get_offset() const override {
    return offset_;
  }

  void set_state(const c10::TensorImpl& state) override {
    forget_draws();
    engine_.unsafeGetGeneratorImpl()->set_state(state);
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return engine_.unsafeGetGeneratorImpl()->get_state();
  }

 private:
  EmulatedGenerator* clone_impl() const override {
    auto* clone = new EmulatedGenerator(device().index(), engine_.clone());
    clone->offset_ = offset_;
    clone->before_draw_ = before_draw_;
    return clone;
  }

  struct Draw {
    uint64_t offset;
    c10::intrusive_ptr<c10::TensorImpl> state;
  };

  void forget_draws() {
    before_draw_.clear();
    offset_ = 0;
  }

  at::Generator engine_;
  uint64_t offset_ = 0;
  std::deque<Draw> before_draw_;
};

}  // namespace

at::Generator make_generator(c10::DeviceIndex device) {
  return at::make_generator<EmulatedGenerator>(
      resolve_index(device), at::detail::createCPUGenerator());
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

at::Generator cpu_engine_for_draw(const at::Generator& generator) {
  if (!generator.defined() || generator.device().type() != kDeviceType) {
    return generator;
  }
  return static_cast<EmulatedGenerator*>(generator.unsafeGetGeneratorImpl())->engine_for_draw();
}

}  // namespace emulated_npu
