// SPDX-License-Identifier: Apache-2.0
// Kernels that use queues, flags or parameters wrongly.
#include "cases.h"

using namespace cases;

namespace {

// A load queue of two buffers and depth 1.
struct Queued {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  Queued() {
    pipe.InitBuffer(queue, 2, 256);
  }
};

}  // namespace

// Queues.

MKV_CASE(more_tensors_than_buffers, "queue_depth", 1) {
  Queued kit;
  kit.queue.AllocTensor<int32_t>();
  kit.queue.AllocTensor<int32_t>();
  kit.queue.AllocTensor<int32_t>();
}

MKV_CASE(deeper_than_the_queue, "queue_depth", 1) {
  Queued kit;
  auto first = kit.queue.AllocTensor<int32_t>();
  auto second = kit.queue.AllocTensor<int32_t>();
  kit.queue.EnQue(first);
  kit.queue.EnQue(second);
}

MKV_CASE(dequeue_from_empty, "queue_order", 1) {
  Queued kit;
  kit.queue.DeQue<int32_t>();
}

MKV_CASE(freed_twice, "queue_order", 1) {
  Queued kit;
  auto tensor = kit.queue.AllocTensor<int32_t>();
  kit.queue.FreeTensor(tensor);
  kit.queue.FreeTensor(tensor);
}

MKV_CASE(freed_in_the_queue, "queue_order", 1) {
  Queued kit;
  auto tensor = kit.queue.AllocTensor<int32_t>();
  kit.queue.EnQue(tensor);
  kit.queue.FreeTensor(tensor);
}

MKV_CASE(enqueued_after_it_was_freed, "queue_order", 1) {
  Queued kit;
  auto tensor = kit.queue.AllocTensor<int32_t>();
  kit.queue.FreeTensor(tensor);
  kit.queue.EnQue(tensor);
}

MKV_CASE(tensor_of_another_queue, "queue_order", 1) {
  Queued kit;
  TQue<TPosition::VECOUT, 1> other;
  kit.pipe.InitBuffer(other, 1, 256);
  auto tensor = kit.queue.AllocTensor<int32_t>();
  other.EnQue(tensor);
}

MKV_CASE(queue_without_buffers, "queue_order", 1) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  queue.AllocTensor<int32_t>();
}

MKV_CASE(never_dequeued, "queue_leak", 1) {
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> queue;
  pipe.InitBuffer(queue, 1, 256);
  auto tensor = queue.AllocTensor<int32_t>();
  queue.EnQue(tensor);
  // The flag itself is paired, the tensor is not.
  WaitFlag<HardEvent::MTE2_MTE3>(EVENT_ID0);
  pipe.ReleaseEventID<HardEvent::MTE2_MTE3>(EVENT_ID0);
}

MKV_CASE(never_freed, "queue_leak", 1) {
  Queued kit;
  kit.queue.AllocTensor<int32_t>();
}

// Flags.

MKV_CASE(waits_for_nothing, "flag_not_set", 1) {
  TPipe pipe;
  WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
}

MKV_CASE(waits_for_another_id, "flag_not_set", 1) {
  TPipe pipe;
  SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_V>(EVENT_ID1);
}

MKV_CASE(waits_for_another_event, "flag_not_set", 1) {
  TPipe pipe;
  SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_S>(EVENT_ID0);
}

MKV_CASE(sets_twice, "flag_set_twice", 1) {
  TPipe pipe;
  SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
}

// An id by hand meets the one that a queue holds.
MKV_CASE(id_of_a_queue, "flag_set_twice", 1) {
  Queued kit;
  auto tensor = kit.queue.AllocTensor<int32_t>();
  kit.queue.EnQue(tensor);
  SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
}

MKV_CASE(never_waited_for, "flag_unpaired", 1) {
  TPipe pipe;
  SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
}

MKV_CASE(id_out_of_range, "event_ids", 1) {
  TPipe pipe;
  SetFlag<HardEvent::MTE2_V>(8);
}

MKV_CASE(id_never_released, "event_ids", 1) {
  TPipe pipe;
  pipe.AllocEventID<HardEvent::MTE2_V>();
}

MKV_CASE(ids_exhausted, "event_ids", 1) {
  TPipe pipe;
  for (int i = 0; i < 9; ++i) {
    pipe.AllocEventID<HardEvent::MTE2_V>();
  }
}

MKV_CASE(id_released_twice, "event_ids", 1) {
  TPipe pipe;
  const auto id = pipe.AllocEventID<HardEvent::MTE2_V>();
  pipe.ReleaseEventID<HardEvent::MTE2_V>(id);
  pipe.ReleaseEventID<HardEvent::MTE2_V>(id);
}

MKV_CASE(no_pipe, "pipe", 1) {
  GetTPipePtr();
}

MKV_CASE(two_pipes, "pipe", 1) {
  TPipe first;
  TPipe second;
}

// Parameters.

MKV_CASE(count_of_zero, "argument", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 0);
}

MKV_CASE(shift_too_far, "argument", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.work, 1, 8);
  PipeBarrier<PIPE_V>();
  ShiftRight(kit.work, kit.work, 33, 8);
}

MKV_CASE(not_whole_blocks, "argument", 1) {
  Kit kit(gm_x, gm_y);
  DataCopy(kit.in, kit.x, 5);
}

MKV_CASE(too_many_blocks, "argument", 1) {
  Kit kit(gm_x, gm_y);
  DataCopyPad(
      kit.in, kit.x, DataCopyExtParams{4096, 4, 0, 0, 0},
      DataCopyPadExtParams<int32_t>{false, 0, 0, 0});
}

MKV_CASE(block_of_part_of_an_element, "argument", 1) {
  Kit kit(gm_x, gm_y);
  DataCopyPad(
      kit.in, kit.x, DataCopyExtParams{1, 6, 0, 0, 0},
      DataCopyPadExtParams<int32_t>{false, 0, 0, 0});
}

MKV_CASE(too_much_padding, "argument", 1) {
  Kit kit(gm_x, gm_y);
  DataCopyPad(
      kit.in, kit.x, DataCopyExtParams{1, 4, 0, 0, 0},
      DataCopyPadExtParams<int32_t>{true, 9, 0, 0});
}

MKV_CASE(padding_of_eight_byte_values, "argument", 1) {
  Kit kit(gm_x, gm_y);
  GlobalTensor<int64_t> x;
  x.SetGlobalBuffer(reinterpret_cast<__gm__ int64_t*>(gm_x));
  DataCopyPad(
      kit.in.ReinterpretCast<int64_t>(), x, DataCopyExtParams{1, 8, 0, 0, 0},
      DataCopyPadExtParams<int64_t>{true, 0, 1, 5});
}

MKV_CASE(cast_without_rounding, "argument", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.work.ReinterpretCast<float>(), 1.5F, 8);
  PipeBarrier<PIPE_V>();
  Cast(kit.out, kit.work.ReinterpretCast<float>(), RoundMode::CAST_NONE, 8);
}

MKV_CASE(cast_of_what_does_not_fit, "cast_range", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.work.ReinterpretCast<float>(), 3e9F, 8);
  PipeBarrier<PIPE_V>();
  Cast(kit.out, kit.work.ReinterpretCast<float>(), RoundMode::CAST_FLOOR, 8);
}

MKV_CASE(gather_offset_inside_an_element, "argument", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  Duplicate(kit.work, 2, 8);
  PipeBarrier<PIPE_ALL>();
  Gather(kit.out, kit.in, kit.work.ReinterpretCast<uint32_t>(), 0, 8);
}

MKV_CASE(no_cores, "argument", 0) {}
