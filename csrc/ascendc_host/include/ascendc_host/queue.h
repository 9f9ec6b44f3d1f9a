// SPDX-License-Identifier: Apache-2.0
// Flags, barriers, and the queues that set and wait for flags.
#ifndef MKV_ASCENDC_HOST_QUEUE_H_
#define MKV_ASCENDC_HOST_QUEUE_H_

#include <deque>
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

}  // namespace AscendC

#endif  // MKV_ASCENDC_HOST_QUEUE_H_
