// SPDX-License-Identifier: Apache-2.0
// How PyTorch switches the current device and stream, and records events, for the emulated device.
#include "device_state.h"
#include "streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>

namespace mkv::emulator {

namespace {

// An event is the moment at which it was recorded: all work before it has ended by then.
struct RecordedMoment {
  std::chrono::steady_clock::time_point time;
};

class EmulatedDeviceGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override {
    return kDeviceType;
  }

  c10::Device exchangeDevice(c10::Device device) const override {
    const auto previous = getDevice();
    setDevice(device);
    return previous;
  }

  c10::Device getDevice() const override {
    return npu(current_device());
  }

  void setDevice(c10::Device device) const override {
    if (device.has_index()) {
      set_current_device(device.index());
    }
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index() && device.index() < settings().device_count) {
      set_current_device(device.index());
    }
  }

  c10::Stream getStream(c10::Device device) const override {
    return current_stream(device.index());
  }

  c10::Stream getDefaultStream(c10::Device device) const override {
    return default_stream(device.index());
  }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high_priority*/) const override {
    return new_stream(device.index());
  }

  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    return new_stream(device.index());
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    return exchange_stream(stream);
  }

  void record(
      void** event, const c10::Stream& /*stream*/, const c10::DeviceIndex /*device*/,
      const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      *event = new RecordedMoment();
    }
    static_cast<RecordedMoment*>(*event)->time = std::chrono::steady_clock::now();
  }

  void destroyEvent(void* event, const c10::DeviceIndex /*device*/) const noexcept override {
    delete static_cast<RecordedMoment*>(event);
  }

  double elapsedTime(void* start, void* end, const c10::DeviceIndex /*device*/) const override {
    TORCH_CHECK(
        start != nullptr && end != nullptr,
        "elapsed time asked of an event that was not recorded; record both");
    const auto duration =
        static_cast<RecordedMoment*>(end)->time - static_cast<RecordedMoment*>(start)->time;
    return std::chrono::duration<double, std::milli>(duration).count();
  }

  // Nothing is ever pending: each call ended before it returned.
  void block(void* /*event*/, const c10::Stream& /*stream*/) const override {}
  void synchronizeStream(const c10::Stream& /*stream*/) const override {}
  void synchronizeEvent(void* /*event*/) const override {}
  void synchronizeDevice(const c10::DeviceIndex /*device*/) const override {}

  bool queryEvent(void* /*event*/) const override {
    return true;
  }

  bool queryStream(const c10::Stream& /*stream*/) const override {
    return true;
  }

  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(settings().device_count);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, EmulatedDeviceGuard)

}  // namespace

}  // namespace mkv::emulator
