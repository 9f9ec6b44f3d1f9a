// SPDX-License-Identifier: Apache-2.0
// TPipe, which gives out the unified buffer, and TBuf.
#ifndef MKV_ASCENDC_HOST_PIPE_H_
#define MKV_ASCENDC_HOST_PIPE_H_

#include <deque>
#include <exception>
#include <string>

#include "queue.h"

namespace AscendC {

// Memory without synchronisation of its own.
template <TPosition pos = TPosition::VECCALC>
class TBuf {
 public:
  template <typename T>
  LocalTensor<T> Get(Where where = Where::Here()) {
    const auto& buffer = BufferOf(where);
    return LocalTensor<T>(Place(0), (buffer.end - buffer.begin) / sizeof(T));
  }
  template <typename T>
  LocalTensor<T> Get(uint32_t len, Where where = Where::Here()) {
    BufferOf(where);
    return LocalTensor<T>(Place(0), len);
  }
  // `bufOffset` counts bytes, `size` elements.
  template <typename T>
  LocalTensor<T> GetWithOffset(uint32_t size, uint32_t bufOffset, Where where = Where::Here()) {
    BufferOf(where);
    return LocalTensor<T>(Place(bufOffset), size);
  }

 private:
  friend class TPipe;

  const ascendc_host::Buffer& BufferOf(Where where) {
    auto& core = ascendc_host::Core::OfThisThread();
    if (!valid_) {
      core.Fail("ub_bounds", "a TBuf that InitBuffer was not called for", where);
    }
    return core.buffer(buffer_);
  }
  ascendc_host::UbPlace Place(uint32_t offset) const {
    return ascendc_host::UbPlace{begin_ + offset, buffer_, true};
  }

  uint32_t buffer_ = 0;
  uint32_t begin_ = 0;
  bool valid_ = false;
};

class TPipe {
 public:
  explicit TPipe(Where where = Where::Here()) {
    auto& core = ascendc_host::Core::OfThisThread();
    if (core.pipe_object != nullptr) {
      core.Fail("pipe", "a second TPipe while one lives", where);
    }
    core.pipe_object = this;
  }
  TPipe(const TPipe&) = delete;
  TPipe& operator=(const TPipe&) = delete;

  ~TPipe() noexcept(false) {
    auto& core = ascendc_host::Core::OfThisThread();
    core.pipe_object = nullptr;
    // After a problem that ended the kernel, what it left open says nothing.
    if (std::uncaught_exceptions() == 0) {
      Close(core);
    }
  }

  template <class T>
  bool InitBuffer(T& que, uint8_t num, uint32_t len, Where where = Where::Here()) {
    auto& core = ascendc_host::Core::OfThisThread();
    if (num == 0) {
      core.Fail("ub_capacity", "InitBuffer of a queue with 0 buffers", where);
    }
    // Held together: a queue points at its first.
    auto& group = groups_.emplace_back(num);
    const std::string queue =
        std::string(ascendc_host::Name(T::kPosition)) + " queue of " + ascendc_host::Text(where);
    for (uint8_t i = 0; i < num; ++i) {
      group[i].buffer =
          Take(core, len, T::kPosition, queue + " buffer " + std::to_string(i), where);
      group[i].free_event = T::kFreeEvent;
    }
    que.start_ = group.data();
    que.count_ = num;
    que.cursor_ = 0;
    return true;
  }

  template <TPosition pos>
  bool InitBuffer(TBuf<pos>& buf, uint32_t len, Where where = Where::Here()) {
    auto& core = ascendc_host::Core::OfThisThread();
    buf.buffer_ = Take(
        core, len, pos,
        std::string(ascendc_host::Name(pos)) + " TBuf of " + ascendc_host::Text(where), where);
    buf.begin_ = core.buffer(buf.buffer_).begin;
    buf.valid_ = true;
    return true;
  }

  template <HardEvent evt>
  TEventID AllocEventID(Where where = Where::Here()) {
    return ascendc_host::Core::OfThisThread().AllocEvent(evt, where);
  }
  template <HardEvent evt>
  void ReleaseEventID(TEventID id, Where where = Where::Here()) {
    ascendc_host::Core::OfThisThread().ReleaseEvent(evt, id, where);
  }
  template <HardEvent evt>
  TEventID FetchEventID(Where where = Where::Here()) {
    return ascendc_host::Core::OfThisThread().FreeEvent(evt, where);
  }
  TEventID FetchEventID(HardEvent evt, Where where = Where::Here()) {
    return ascendc_host::Core::OfThisThread().FreeEvent(evt, where);
  }

 private:
  uint32_t Take(
      ascendc_host::Core& core, uint32_t len, TPosition position, const std::string& name,
      Where where) {
    using ascendc_host::kBlockBytes;
    if (len == 0) {
      core.Fail("ub_capacity", "InitBuffer of 0 bytes", where, name);
    }
    if (core.buffer_count() >= ascendc_host::kMaximumBuffers) {
      core.Fail("ub_capacity", "more than 64 buffers", where, name);
    }
    const uint64_t rounded = (uint64_t{len} + kBlockBytes - 1) / kBlockBytes * kBlockBytes;
    if (rounded > ascendc_host::kUsableBytes - used_) {
      core.Fail(
          "ub_capacity",
          "UB is full: " + std::to_string(used_) + " bytes in use, " + std::to_string(rounded) +
              " asked for; of 196608 bytes 188416 are for use, "
              "the rest is scratch space of library calls",
          where, name);
    }
    ascendc_host::Buffer buffer;
    buffer.begin = used_;
    buffer.end = used_ + static_cast<uint32_t>(rounded);
    buffer.position = position;
    buffer.name = name;
    used_ = buffer.end;
    return core.AddBuffer(buffer);
  }

  void Close(ascendc_host::Core& core) {
    for (auto& group : groups_) {
      for (auto& entry : group) {
        Close(core, entry);
      }
    }
    core.Barrier(PIPE_ALL);
  }

  void Close(ascendc_host::Core& core, ascendc_host::QueueBuffer& entry) {
    const auto& name = core.buffer(entry.buffer).name;
    if (entry.state == ascendc_host::QueueBuffer::kFree) {
      if (entry.free_id >= 0) {
        core.WaitFlag(entry.free_event, entry.free_id, entry.where);
        core.ReleaseEvent(entry.free_event, entry.free_id, entry.where);
      }
      return;
    }
    const bool waiting = entry.state == ascendc_host::QueueBuffer::kEnqueued;
    core.Add(
        "queue_leak",
        waiting ? "a tensor is in the queue at the end of the kernel; DeQue is missing"
                : "a tensor is not free at the end of the kernel; FreeTensor is missing",
        entry.where, name);
  }

  std::deque<std::vector<ascendc_host::QueueBuffer>> groups_;
  uint32_t used_ = 0;
};

inline int64_t GetBlockIdx() {
  return ascendc_host::Core::OfThisThread().index();
}
inline int64_t GetBlockNum() {
  return ascendc_host::Core::OfThisThread().count();
}

}  // namespace AscendC

// Not in the namespace: CANN has it at the top.
inline AscendC::TPipe* GetTPipePtr(ascendc_host::Where where = ascendc_host::Where::Here()) {
  auto& core = ascendc_host::Core::OfThisThread();
  if (core.pipe_object == nullptr) {
    core.Fail("pipe", "GetTPipePtr without a TPipe", where);
  }
  return static_cast<AscendC::TPipe*>(core.pipe_object);
}

#endif  // MKV_ASCENDC_HOST_PIPE_H_
