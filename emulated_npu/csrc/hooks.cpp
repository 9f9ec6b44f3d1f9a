// SPDX-License-Identifier: Apache-2.0
// Answers PyTorch's device-independent code (torch.accelerator, pinning, storage resize,
// torch.Generator).
#include "hooks.h"

#include "allocator.h"
#include "device_state.h"
#include "generator.h"
#include "pinned_memory.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <cstring>

namespace emulated_npu {

namespace {

class EmulatedHooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override {
    return true;
  }

  bool isAvailable() const override {
    return true;
  }

  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override {
    return true;
  }

  c10::DeviceIndex deviceCount() const override {
    return static_cast<c10::DeviceIndex>(settings().device_count);
  }

  c10::DeviceIndex getCurrentDevice() const override {
    return current_device();
  }

  void setCurrentDevice(c10::DeviceIndex device) const override {
    set_current_device(device);
  }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto previous = current_device();
    set_current_device(device);
    return previous;
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device() : exchangeDevice(device);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }

  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return make_generator(device);
  }

  // Device memory is host memory, so an address alone does not say whose it is.
  at::Device getDeviceFromPtr(void* /*data*/) const override {
    return npu(current_device());
  }

  bool isPinnedPtr(const void* data) const override {
    return is_pinned(data);
  }

  c10::Allocator* getPinnedMemoryAllocator() const override {
    return pinned_allocator();
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    auto* impl = storage.unsafeGetStorageImpl();
    const c10::DeviceGuard guard(storage.device());
    c10::DataPtr data = device_allocator()->allocate(bytes);
    const size_t kept = std::min(impl->nbytes(), bytes);
    if (kept > 0) {
      std::memcpy(data.get(), impl->data(), kept);
    }
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(bytes);
  }
};

}  // namespace

void register_with_torch() {
  c10::SetAllocator(kDeviceType, device_allocator());
  at::setHostAllocator(kDeviceType, pinned_allocator());
  static auto* hooks = new EmulatedHooks();
  at::RegisterPrivateUse1HooksInterface(hooks);
}

}  // namespace emulated_npu
