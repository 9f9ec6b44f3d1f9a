// SPDX-License-Identifier: Apache-2.0
// Kernels that touch what is not theirs, or use what nobody wrote.
#include "cases.h"

using namespace cases;

// Junk.

MKV_CASE(stores_what_nobody_wrote, "undefined", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 63);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 64);
}

MKV_CASE(stores_padding_of_a_copy, "undefined", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 5);
  Sync<HardEvent::MTE2_MTE3>();
  Store(kit.y, kit.in, 6);
}

// What was there before the copy is gone as well.
MKV_CASE(padding_over_what_was_defined, "undefined", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 8);
  PipeBarrier<PIPE_MTE2>();
  Load(kit.in, kit.x, 5);
  Sync<HardEvent::MTE2_MTE3>();
  Store(kit.y, kit.in, 8);
}

MKV_CASE(reads_padding_of_a_copy, "undefined", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 5);
  Sync<HardEvent::MTE2_S>();
  kit.in.GetValue(5);
}

MKV_CASE(stores_a_sum_of_junk, "undefined", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 5);
  Sync<HardEvent::MTE2_V>();
  Adds(kit.out, kit.in, 1, 8);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 8);
}

MKV_CASE(stores_junk_times_one, "undefined", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 5);
  Duplicate(kit.work, 1, 64);
  Sync<HardEvent::MTE2_V>();
  PipeBarrier<PIPE_V>();
  Mul(kit.out, kit.work, kit.in, 8);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 8);
}

MKV_CASE(gathers_by_junk, "undefined", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  Sync<HardEvent::MTE2_V>();
  Duplicate(kit.work, 4, 8);
  PipeBarrier<PIPE_V>();
  // Bounded, so that only its being junk is wrong.
  Mins(kit.work[8], kit.work[8], 0, 8);
  PipeBarrier<PIPE_V>();
  Maxs(kit.work[8], kit.work[8], 0, 8);
  PipeBarrier<PIPE_V>();
  Gather(kit.out, kit.in, kit.work.ReinterpretCast<uint32_t>(), 0, 9);
}

// Only the first of the cores to run finds what it wrote; UB is not shared.
MKV_CASE(relies_on_what_another_core_left, "undefined", 2) {
  Kit kit(gm_x, gm_y);
  if (GetBlockIdx() == 0) {
    Duplicate(kit.out, 1, 8);
  }
  Sync<HardEvent::V_MTE3>();
  Store(kit.y[GetBlockIdx() * 8], kit.out, 8);
}

MKV_CASE(padding_without_ispad_is_junk, "undefined", 1) {
  Kit kit(gm_x, gm_y);
  DataCopyPad(
      kit.in, kit.x, DataCopyExtParams{1, 20, 0, 0, 0},
      DataCopyPadExtParams<int32_t>{false, 0, 3, 9});
  Sync<HardEvent::MTE2_MTE3>();
  Store(kit.y, kit.in, 8);
}

// Unified buffer.

MKV_CASE(too_much_memory, "ub_capacity", 1) {
  TPipe pipe;
  TBuf<> first, second;
  pipe.InitBuffer(first, 184 * 1024 - 32);
  pipe.InitBuffer(second, 33);
}

MKV_CASE(too_many_buffers, "ub_capacity", 1) {
  TPipe pipe;
  TBuf<> buffers[65];
  for (auto& buffer : buffers) {
    pipe.InitBuffer(buffer, 32);
  }
}

MKV_CASE(vector_count_too_large, "ub_bounds", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 257);
}

MKV_CASE(load_past_the_buffer, "ub_bounds", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in[8], kit.x, 249);
}

MKV_CASE(load_of_blocks_past_the_buffer, "ub_bounds", 1) {
  Kit kit(gm_x, gm_y);
  DataCopyPad(
      kit.in, kit.x, DataCopyExtParams{33, 4, 28, 0, 0},
      DataCopyPadExtParams<int32_t>{false, 0, 0, 0});
}

MKV_CASE(store_past_the_buffer, "ub_bounds", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 256);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out[248], 9);
}

MKV_CASE(scalar_write_past_the_buffer, "ub_bounds", 1) {
  Kit kit(gm_x, gm_y);
  kit.work.SetValue(256, 0);
}

MKV_CASE(scalar_read_before_the_buffer, "ub_bounds", 1) {
  Kit kit(gm_x, gm_y);
  kit.work.GetValue(static_cast<uint32_t>(-1));
}

MKV_CASE(gather_past_the_buffer, "ub_bounds", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 256);
  Duplicate(kit.work, 1024, 8);
  PipeBarrier<PIPE_ALL>();
  Gather(kit.out, kit.in, kit.work.ReinterpretCast<uint32_t>(), 0, 8);
}

MKV_CASE(tensor_without_a_buffer, "ub_bounds", 1) {
  TPipe pipe;
  LocalTensor<int32_t> tensor;
  Duplicate(tensor, 1, 8);
}

MKV_CASE(vector_operand_not_aligned, "ub_alignment", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out[4], 1, 8);
}

MKV_CASE(load_not_aligned, "ub_alignment", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in[1], kit.x, 8);
}

MKV_CASE(store_not_aligned, "ub_alignment", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out[1], 1);
}

MKV_CASE(load_into_veccalc, "copy_position", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.work, kit.x, 8);
}

MKV_CASE(store_from_veccalc, "copy_position", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.work, 1, 8);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.work, 8);
}

MKV_CASE(operands_overlap_in_part, "overlap", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.work, 1, 64);
  PipeBarrier<PIPE_V>();
  Adds(kit.work[8], kit.work, 1, 32);
}

MKV_CASE(cast_in_place_to_a_wider_type, "overlap", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.work, 1, 64);
  PipeBarrier<PIPE_V>();
  Cast(kit.work.ReinterpretCast<int64_t>(), kit.work, RoundMode::CAST_NONE, 8);
}

MKV_CASE(gather_from_its_own_result, "overlap", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 64);
  Duplicate(kit.work, 4, 8);
  PipeBarrier<PIPE_V>();
  Gather(kit.out, kit.out, kit.work.ReinterpretCast<uint32_t>(), 0, 8);
}

// Global memory.

MKV_CASE(reads_past_the_input, "gm_bounds", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x[1023], 2);
}

MKV_CASE(reads_before_the_input, "gm_bounds", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x[static_cast<uint64_t>(-1)], 1);
}

MKV_CASE(whole_blocks_read_past_the_input, "gm_bounds", 1) {
  Kit kit(gm_x, gm_y);
  DataCopy(kit.in, kit.x[1020], 8);
}

MKV_CASE(writes_past_the_output, "gm_bounds", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y[1000], kit.out, 25);
}

MKV_CASE(scalar_read_past_the_input, "gm_bounds", 1) {
  Kit kit(gm_x, gm_y);
  kit.x.GetValue(1024);
}

MKV_CASE(reads_past_the_stated_size, "gm_bounds", 1) {
  Kit kit(gm_x, gm_y);
  kit.x.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(gm_x), 100);
  Load(kit.in, kit.x[96], 5);
}

MKV_CASE(reads_an_unknown_address, "gm_unregistered", 1) {
  Kit kit(gm_x, gm_y);
  static int32_t elsewhere[8];
  kit.x.SetGlobalBuffer(elsewhere);
  Load(kit.in, kit.x, 8);
}

MKV_CASE(writes_the_input, "gm_readonly", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 1, 8);
  Sync<HardEvent::V_MTE3>();
  Store(kit.x, kit.out, 8);
}
