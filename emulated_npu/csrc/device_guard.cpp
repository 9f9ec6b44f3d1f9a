// SPDX-License-Identifier: Apache-2.0
// How PyTorch switches the current device and stream, and records events, for the emulated device.
#include "counters.h"
#include "device_state.h"
#include "host_waits.h"
#include "recording.h"
#include "streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <chrono>

namespace emulated_npu {

namespace {

// An event is the moment at which it was recorded: all work before it has ended by then.
struct RecordedMoment {
  std::chrono::steady_clock::time_point time;
  int64_t tape = 0;  // recorded while its stream recorded there
  Progress known;    // what of a capture happens before
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
      void** event, const c10::Stream& stream, const c10::DeviceIndex /*device*/,
      const c10::EventFlag /*flag*/) const override {
    if (*event == nullptr) {
      *event = new RecordedMoment();
    }
    auto* moment = static_cast<RecordedMoment*>(*event);
    *moment = {std::chrono::steady_clock::now(), 0, {}};
    if (const auto tape = tape_of(key_of(stream))) {
      moment->tape = tape->id;
      moment->known = progress_of(*tape, key_of(stream));
    }
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

  // Work that was launched has ended, but on a stream that records: there it has not begun.
  void block(void* event, const c10::Stream& stream) const override {
    const auto* moment = static_cast<RecordedMoment*>(event);
    const auto tape = moment == nullptr ? nullptr : unfinished_tape(moment->tape);
    if (tape != nullptr) {
      wait_for_progress(tape, moment->known, key_of(stream));
    }
  }

  void synchronizeStream(const c10::Stream& stream) const override {
    wait_for_stream(key_of(stream));
    raise_device_error();
  }

  void synchronizeEvent(void* event) const override {
    wait_for_event(tape_of_event(event));
    raise_device_error();
  }

  void synchronizeDevice(const c10::DeviceIndex device) const override {
    wait_for_device(resolve_index(device));
    raise_device_error();
  }

  bool queryEvent(void* event) const override {
    return event_has_come(tape_of_event(event));
  }

  bool queryStream(const c10::Stream& stream) const override {
    return stream_is_idle(key_of(stream));
  }

  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(settings().device_count);
  }

 private:
  static int64_t tape_of_event(void* event) {
    return event == nullptr ? 0 : static_cast<RecordedMoment*>(event)->tape;
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, EmulatedDeviceGuard)

}  // namespace

}  // namespace emulated_npu
