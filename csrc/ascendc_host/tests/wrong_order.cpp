// SPDX-License-Identifier: Apache-2.0
// Kernels whose accesses nothing orders: between pipes, within a pipe, and between cores.
#include "cases.h"

using namespace cases;

// Between pipes: each leaves out, or misplaces, one pair of flags.

MKV_CASE(vector_reads_before_load, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  Adds(kit.work, kit.in, 1, 64);
}

MKV_CASE(store_before_vector_wrote, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 64);
  Store(kit.y, kit.out, 64);
}

MKV_CASE(vector_rewrites_what_is_stored, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 64);
  Duplicate(kit.out, 2, 64);
}

MKV_CASE(load_over_what_vector_reads, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  Sync<HardEvent::MTE2_V>();
  Adds(kit.work, kit.in, 1, 64);
  PipeBarrier<PIPE_MTE2>();
  Load(kit.in, kit.x[64], 64);
}

MKV_CASE(load_over_what_is_stored, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  Sync<HardEvent::MTE2_MTE3>();
  Store(kit.y, kit.in, 64);
  Load(kit.in, kit.x[64], 64);
}

MKV_CASE(copy_through_without_flag, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  Store(kit.y, kit.in, 64);
}

MKV_CASE(scalar_reads_before_vector_wrote, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.work, 1, 64);
  kit.work.GetValue(3);
}

MKV_CASE(scalar_reads_before_load, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  kit.in.GetValue(3);
}

MKV_CASE(vector_reads_before_scalar_wrote, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  kit.work.SetValue(0, 5);
  Adds(kit.out, kit.work, 1, 1);
}

MKV_CASE(store_before_scalar_wrote, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  kit.out.SetValue(0, 5);
  Store(kit.y, kit.out, 1);
}

MKV_CASE(load_over_what_scalar_reads, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  Sync<HardEvent::MTE2_S>();
  kit.in.GetValue(3);
  Load(kit.in, kit.x[64], 64);
}

MKV_CASE(scalar_writes_over_what_is_stored, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  kit.out.SetValue(0, 5);
  Sync<HardEvent::S_MTE3>();
  Store(kit.y, kit.out, 1);
  kit.out.SetValue(0, 6);
}

MKV_CASE(vector_writes_over_what_scalar_reads, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.work, 1, 64);
  Sync<HardEvent::V_S>();
  kit.work.GetValue(3);
  PipeBarrier<PIPE_V>();
  Duplicate(kit.work, 2, 64);
}

MKV_CASE(flag_set_before_the_load, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  Load(kit.in, kit.x, 64);
  WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
  Adds(kit.work, kit.in, 1, 64);
}

MKV_CASE(flag_waited_for_after_the_use, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  SetFlag<HardEvent::MTE2_V>(EVENT_ID0);
  Adds(kit.work, kit.in, 1, 64);
  WaitFlag<HardEvent::MTE2_V>(EVENT_ID0);
}

MKV_CASE(flag_of_the_other_direction, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  Sync<HardEvent::V_MTE2>();
  Adds(kit.work, kit.in, 1, 64);
}

// A wait of the scalar unit holds back what it issues later; that is not documented as order.
MKV_CASE(order_only_by_issue, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 64);
  Sync<HardEvent::V_S>();
  Store(kit.y, kit.out, 64);
}

MKV_CASE(barrier_of_the_wrong_pipe, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  PipeBarrier<PIPE_V>();
  PipeBarrier<PIPE_MTE2>();
  Adds(kit.work, kit.in, 1, 64);
}

MKV_CASE(queue_covers_vector_not_scalar, "hazard", 1) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  pipe.InitBuffer(queue, 1, 256);
  GlobalTensor<int32_t> x;
  x.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(gm_x));
  auto tensor = queue.AllocTensor<int32_t>();
  Load(tensor, x, 64);
  queue.EnQue(tensor);
  tensor = queue.DeQue<int32_t>();
  tensor.GetValue(0);
  queue.FreeTensor(tensor);
}

MKV_CASE(used_before_the_queue_was_asked, "hazard", 1) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  TBuf<> work;
  pipe.InitBuffer(queue, 1, 256);
  pipe.InitBuffer(work, 256);
  GlobalTensor<int32_t> x;
  x.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(gm_x));
  auto tensor = queue.AllocTensor<int32_t>();
  Load(tensor, x, 64);
  Adds(work.Get<int32_t>(), tensor, 1, 64);
  queue.EnQue(tensor);
  tensor = queue.DeQue<int32_t>();
  queue.FreeTensor(tensor);
}

MKV_CASE(used_after_it_was_freed, "hazard", 1) {
  TPipe pipe;
  TQue<TPosition::VECIN, 1> queue;
  TBuf<> work;
  pipe.InitBuffer(queue, 1, 256);
  pipe.InitBuffer(work, 256);
  GlobalTensor<int32_t> x;
  x.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(gm_x));
  for (int i = 0; i < 2; ++i) {
    auto tensor = queue.AllocTensor<int32_t>();
    Load(tensor, x, 64);
    queue.EnQue(tensor);
    tensor = queue.DeQue<int32_t>();
    queue.FreeTensor(tensor);
    PipeBarrier<PIPE_V>();
    Adds(work.Get<int32_t>(), tensor, 1, 64);
  }
}

// Within a pipe.

MKV_CASE(vector_reads_what_vector_writes, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.work, 1, 64);
  Adds(kit.out, kit.work, 1, 64);
}

MKV_CASE(vector_writes_what_vector_reads, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.work, 1, 64);
  PipeBarrier<PIPE_V>();
  Adds(kit.out, kit.work, 1, 64);
  Duplicate(kit.work, 2, 64);
}

MKV_CASE(vector_writes_twice, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.work, 1, 64);
  Duplicate(kit.work[56], 2, 64);
}

MKV_CASE(two_loads_to_one_place, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  Load(kit.in[32], kit.x, 32);
}

// The rest of a copy's last 32 bytes is written too.
MKV_CASE(two_loads_of_less_than_a_block, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in[8], kit.x, 8);
  Load(kit.in, kit.x, 9);
}

MKV_CASE(index_over_what_vector_wrote, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.work, 1, 8);
  CreateVecIndex(kit.work, 0, 8);
}

MKV_CASE(index_used_without_barrier, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  CreateVecIndex(kit.work, 0, 100);
  Adds(kit.out, kit.work, 1, 100);
}

MKV_CASE(gather_before_load, "hazard", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  Duplicate(kit.work, 128, 8);
  PipeBarrier<PIPE_V>();
  Gather(kit.out, kit.in, kit.work.ReinterpretCast<uint32_t>(), 0, 8);
}

// Global memory within a core.

MKV_CASE(load_of_what_is_stored, "gm_hazard", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 64);
  Load(kit.in, kit.y[63], 1);
}

MKV_CASE(two_stores_to_one_place, "gm_hazard", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 64);
  Store(kit.y[10], kit.out, 1);
}

MKV_CASE(store_over_what_is_loaded, "gm_hazard", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.y, 64);
  Duplicate(kit.out, 1, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 64);
}

// Between cores.

MKV_CASE(cores_write_the_same_byte, "core_race", 2) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y[GetBlockIdx() * 63], kit.out, 64);
}

MKV_CASE(core_reads_what_another_writes, "core_race", 3) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y[GetBlockIdx() * 64], kit.out, 64);
  Load(kit.in, kit.y[(GetBlockIdx() + 1) % 3 * 64], 8);
}

MKV_CASE(scalar_unit_reads_what_another_core_copies, "core_race", 2) {
  Kit kit(gm_x, gm_y);
  if (GetBlockIdx() == 0) {
    Duplicate(kit.out, 1, 64);
    Sync<HardEvent::V_MTE3>();
    Store(kit.y, kit.out, 64);
  } else {
    DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(kit.y);
    kit.y.GetValue(0);
  }
}

// In either order of the two cores.
MKV_CASE(copy_beside_what_another_core_set, "core_race", 2) {
  Kit kit(gm_x, gm_y);
  if (GetBlockIdx() == 0) {
    Duplicate(kit.out, 1, 8);
    Sync<HardEvent::V_MTE3>();
    Store(kit.y[8], kit.out, 8);
  } else {
    kit.y.SetValue(0, 5);
    DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(kit.y);
  }
}

MKV_CASE(cores_share_a_written_cache_line, "core_race", 2) {
  Kit kit(gm_x, gm_y);
  const auto index = GetBlockIdx();
  kit.y.SetValue(index, 5);
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(
      kit.y[index]);
}

// The data cache of the scalar unit.

MKV_CASE(reads_what_an_earlier_kernel_left, "cache", 1) {
  Kit kit(gm_x, gm_y, false);
  kit.x.GetValue(0);
}

MKV_CASE(reads_behind_the_line_that_was_invalidated, "cache", 1) {
  Kit kit(gm_x, gm_y, false);
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(kit.x);
  kit.x.GetValue(16);
}

// The line goes back with bytes that an earlier kernel left in it.
MKV_CASE(sets_in_a_line_that_an_earlier_kernel_left, "cache", 1) {
  Kit kit(gm_x, gm_y, false);
  kit.y.SetValue(0, 5);
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(kit.y);
}

MKV_CASE(cached_line_is_old, "cache", 1) {
  Kit kit(gm_x, gm_y);
  kit.y.GetValue(0);
  Duplicate(kit.out, 1, 64);
  Sync<HardEvent::V_MTE3>();
  Sync<HardEvent::S_MTE3>();
  Store(kit.y, kit.out, 64);
  Sync<HardEvent::MTE3_S>();
  kit.y.GetValue(1);
}

// The line was in no cache before: it may be, by a neighbour of the tensor.
MKV_CASE(reads_what_a_copy_wrote, "cache", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 64);
  Sync<HardEvent::MTE3_S>();
  kit.y.GetValue(3);
}

// From the address to the end of its line: y[0] is left as it was.
MKV_CASE(invalidated_behind_what_is_read, "cache", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 64);
  Sync<HardEvent::MTE3_S>();
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(kit.y[1]);
  kit.y.GetValue(0);
}

MKV_CASE(cleaned_behind_what_was_set, "cache", 1) {
  Kit kit(gm_x, gm_y);
  kit.y.SetValue(0, 5);
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(kit.y[1]);
}

MKV_CASE(one_line_invalidated_of_two, "cache", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 64);
  Sync<HardEvent::MTE3_S>();
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(kit.y);
  kit.y.GetValue(16);
}

MKV_CASE(copy_into_a_line_that_was_set, "cache", 1) {
  Kit kit(gm_x, gm_y);
  kit.y.SetValue(0, 5);
  Duplicate(kit.out, 1, 8);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y[8], kit.out, 8);
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(kit.y);
}

MKV_CASE(set_in_a_line_that_a_copy_wrote, "cache", 1) {
  Kit kit(gm_x, gm_y);
  kit.y.GetValue(0);
  Duplicate(kit.out, 1, 8);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y[8], kit.out, 8);
  kit.y.SetValue(0, 5);
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(kit.y);
}

MKV_CASE(scalar_value_never_written_back, "cache", 1) {
  Kit kit(gm_x, gm_y);
  kit.y.SetValue(0, 5);
}

MKV_CASE(copy_of_what_the_cache_holds, "cache", 1) {
  Kit kit(gm_x, gm_y);
  kit.y.SetValue(0, 5);
  Sync<HardEvent::S_MTE2>();
  Load(kit.in, kit.y, 1);
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(kit.y);
}
