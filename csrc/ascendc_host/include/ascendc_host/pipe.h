// SPDX-License-Identifier: Apache-2.0
// TPipe, queues and buffers, flags and barriers.
#ifndef ASCENDC_HOST_PIPE_H_
#define ASCENDC_HOST_PIPE_H_

#include <deque>
#include <exception>
#include <string>

#include "tensor.h"

namespace ascendc_host {

// One buffer of a queue, through its cycle AllocTensor, EnQue, DeQue, FreeTensor.
struct QueueBuffer {
  enum State { kFree, kOccupied, kEnqueued, kDequeued };
  State state = kFree;
  uint32_t buffer = 0;
  AscendC::HardEvent free_event = AscendC::HardEvent::MAX;
  int8_t enqueue_id = -1;
  int8_t free_id = -1;
  Where where;
};

constexpr const char* Name(AscendC::TPosition position) {
  switch (position) {
    case AscendC::TPosition::VECIN:
      return "VECIN";
    case AscendC::TPosition::VECOUT:
      return "VECOUT";
    case AscendC::TPosition::VECCALC:
      return "VECCALC";
    default:
      return "GM";
  }
}

// The flag that EnQue sets (forward) or FreeTensor sets, by the two ends of a queue.
constexpr AscendC::HardEvent QueueEvent(
    AscendC::TPosition source, AscendC::TPosition destination, bool forward) {
  using E = AscendC::HardEvent;
  if (source == AscendC::TPosition::GM) {
    return forward ? E::MTE2_V : E::V_MTE2;
  }
  if (destination == AscendC::TPosition::GM) {
    return forward ? E::V_MTE3 : E::MTE3_V;
  }
  return forward ? E::MTE2_MTE3 : E::MTE3_MTE2;
}

}  // namespace ascendc_host

namespace AscendC {

template <HardEvent event>
void SetFlag(int32_t eventID, Where where = Where::Here()) {
  static_assert(event != HardEvent::V_V, "V with V: PipeBarrier<PIPE_V>");
  ascendc_host::Core::OfThisThread().SetFlag(event, eventID, where);
}

template <HardEvent event>
void WaitFlag(int32_t eventID, Where where = Where::Here()) {
  static_assert(event != HardEvent::V_V, "V with V: PipeBarrier<PIPE_V>");
  ascendc_host::Core::OfThisThread().WaitFlag(event, eventID, where);
}

template <pipe_t pipe>
void PipeBarrier() {
  static_assert(pipe != PIPE_S, "PipeBarrier has no PIPE_S: the scalar pipe keeps its own order");
  ascendc_host::Core::OfThisThread().Barrier(pipe);
}

class TPipe;

template <TPosition src, TPosition dst, int32_t depth, auto mask = 0>
class TQueBind {
 public:
  static_assert(depth >= 1, "queues of depth 0 (tensors in place) are not modelled");
  static_assert(
      src != TPosition::VECCALC && dst != TPosition::VECCALC,
      "a queue has VECIN or VECOUT; for VECCALC take a TBuf");

  template <typename T>
  LocalTensor<T> AllocTensor(Where where = Where::Here()) {
    auto& core = ascendc_host::Core::OfThisThread();
    NeedInit(core, where);
    for (uint32_t i = 0; i < count_; ++i) {
      auto& candidate = start_[cursor_];
      cursor_ = (cursor_ + 1) % count_;
      if (candidate.state != ascendc_host::QueueBuffer::kFree) {
        continue;
      }
      if (candidate.free_id >= 0) {
        core.WaitFlag(kFreeEvent, candidate.free_id, where);
        core.ReleaseEvent(kFreeEvent, candidate.free_id, where);
        candidate.free_id = -1;
      }
      candidate.state = ascendc_host::QueueBuffer::kOccupied;
      candidate.where = where;
      return TensorOf<T>(core, candidate);
    }
    core.Fail(
        "queue_depth",
        "AllocTensor with all " + std::to_string(count_) +
            " buffers in use: the core would hang; FreeTensor one before",
        where, core.buffer(start_->buffer).name);
  }

  template <typename T>
  bool EnQue(const LocalTensor<T>& tensor, Where where = Where::Here()) {
    auto& core = ascendc_host::Core::OfThisThread();
    auto& entry = Entry(core, tensor, "EnQue", where);
    if (entry.state == ascendc_host::QueueBuffer::kFree ||
        entry.state == ascendc_host::QueueBuffer::kEnqueued) {
      core.Fail(
          "queue_order", "EnQue of a tensor that is not allocated, or is in the queue already",
          where, core.buffer(entry.buffer).name);
    }
    if (static_cast<int32_t>(waiting_.size()) >= depth) {
      core.Fail(
          "queue_depth",
          "EnQue of tensor " + std::to_string(waiting_.size() + 1) + " into a queue of depth " +
              std::to_string(depth),
          where, core.buffer(entry.buffer).name);
    }
    entry.state = ascendc_host::QueueBuffer::kEnqueued;
    entry.where = where;
    entry.enqueue_id = core.AllocEvent(kEnqueueEvent, where);
    core.SetFlag(kEnqueueEvent, entry.enqueue_id, where);
    waiting_.push_back(&entry);
    return true;
  }

  template <typename T>
  LocalTensor<T> DeQue(Where where = Where::Here()) {
    auto& core = ascendc_host::Core::OfThisThread();
    NeedInit(core, where);
    if (waiting_.empty()) {
      core.Fail(
          "queue_order", "DeQue from an empty queue", where, core.buffer(start_->buffer).name);
    }
    auto& entry = *waiting_.front();
    waiting_.pop_front();
    core.WaitFlag(kEnqueueEvent, entry.enqueue_id, where);
    core.ReleaseEvent(kEnqueueEvent, entry.enqueue_id, where);
    entry.enqueue_id = -1;
    entry.state = ascendc_host::QueueBuffer::kDequeued;
    entry.where = where;
    return TensorOf<T>(core, entry);
  }

  template <typename T>
  void FreeTensor(LocalTensor<T>& tensor, Where where = Where::Here()) {
    auto& core = ascendc_host::Core::OfThisThread();
    auto& entry = Entry(core, tensor, "FreeTensor", where);
    if (entry.state == ascendc_host::QueueBuffer::kFree ||
        entry.state == ascendc_host::QueueBuffer::kEnqueued) {
      core.Fail(
          "queue_order", "FreeTensor of a tensor that is free, or still in the queue", where,
          core.buffer(entry.buffer).name);
    }
    entry.state = ascendc_host::QueueBuffer::kFree;
    entry.where = where;
    entry.free_id = core.AllocEvent(kFreeEvent, where);
    core.SetFlag(kFreeEvent, entry.free_id, where);
  }

 private:
  friend class TPipe;

  static constexpr HardEvent kEnqueueEvent = ascendc_host::QueueEvent(src, dst, true);
  static constexpr HardEvent kFreeEvent = ascendc_host::QueueEvent(src, dst, false);
  static constexpr TPosition kPosition = src == TPosition::GM ? dst : src;

  void NeedInit(ascendc_host::Core& core, Where where) {
    if (start_ == nullptr) {
      core.Fail("queue_order", "a queue that InitBuffer was not called for", where);
    }
  }

  template <typename T>
  ascendc_host::QueueBuffer& Entry(
      ascendc_host::Core& core, const LocalTensor<T>& tensor, const char* call, Where where) {
    NeedInit(core, where);
    for (uint32_t i = 0; i < count_; ++i) {
      if (tensor.place().valid && start_[i].buffer == tensor.place().buffer) {
        return start_[i];
      }
    }
    core.Fail(
        "queue_order", std::string(call) + " of a tensor of another queue or buffer", where,
        core.buffer(start_->buffer).name);
  }

  template <typename T>
  LocalTensor<T> TensorOf(ascendc_host::Core& core, const ascendc_host::QueueBuffer& entry) {
    const auto& buffer = core.buffer(entry.buffer);
    return LocalTensor<T>(
        ascendc_host::UbPlace{buffer.begin, entry.buffer, true},
        (buffer.end - buffer.begin) / sizeof(T));
  }

  ascendc_host::QueueBuffer* start_ = nullptr;
  uint32_t count_ = 0;
  uint32_t cursor_ = 0;
  std::deque<ascendc_host::QueueBuffer*> waiting_;
};

constexpr TPosition GetBufferLogicPos(TPosition pos, bool isSrc) {
  if (pos == TPosition::VECIN) {
    return isSrc ? TPosition::GM : TPosition::VECIN;
  }
  if (pos == TPosition::VECOUT) {
    return isSrc ? TPosition::VECOUT : TPosition::GM;
  }
  return pos;
}

template <TPosition pos, int32_t depth, auto mask = 0>
class TQue
    : public TQueBind<GetBufferLogicPos(pos, true), GetBufferLogicPos(pos, false), depth, mask> {};

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

inline TPipe* GetTPipePtr(Where where = Where::Here()) {
  auto& core = ascendc_host::Core::OfThisThread();
  if (core.pipe_object == nullptr) {
    core.Fail("pipe", "GetTPipePtr without a TPipe", where);
  }
  return static_cast<TPipe*>(core.pipe_object);
}

inline int64_t GetBlockIdx() {
  return ascendc_host::Core::OfThisThread().index();
}
inline int64_t GetBlockNum() {
  return ascendc_host::Core::OfThisThread().count();
}

}  // namespace AscendC

#endif  // ASCENDC_HOST_PIPE_H_
