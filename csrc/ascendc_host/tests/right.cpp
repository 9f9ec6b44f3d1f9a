// SPDX-License-Identifier: Apache-2.0
// Kernels that are right, in the ways that real ones are written. No problem may be reported, and
// y must be what the test computes by itself.
#include "cases.h"

using namespace cases;

// y[i] = 2 * x[i], double buffered through queues, over several cores.
MKV_CASE(doubled_through_queues, "", 3) {
  TPipe pipe;
  TQue<TPosition::VECIN, 2> in;
  TQue<TPosition::VECOUT, 2> out;
  pipe.InitBuffer(in, 2, 256);
  pipe.InitBuffer(out, 2, 256);
  GlobalTensor<int32_t> x, y;
  x.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(gm_x), kElements);
  y.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(gm_y), kElements);
  for (int64_t at = GetBlockIdx() * 64; at < kElements; at += GetBlockNum() * 64) {
    auto source = in.AllocTensor<int32_t>();
    DataCopy(source, x[at], 64);
    in.EnQue(source);
    source = in.DeQue<int32_t>();
    auto result = out.AllocTensor<int32_t>();
    Muls(result, source, 2, 64);
    in.FreeTensor(source);
    out.EnQue(result);
    result = out.DeQue<int32_t>();
    DataCopy(y[at], result, 64);
    out.FreeTensor(result);
  }
}

// y[i] = x[i] for i < 1000: a pure copy in odd pieces, two in flight.
MKV_CASE(copied_by_a_bound_queue, "", 2) {
  TPipe pipe;
  TQueBind<TPosition::VECIN, TPosition::VECOUT, 1> queue;
  pipe.InitBuffer(queue, 2, 256);
  GlobalTensor<int32_t> x, y;
  x.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(gm_x));
  y.SetGlobalBuffer(reinterpret_cast<__gm__ int32_t*>(gm_y));
  for (int64_t at = GetBlockIdx() * 50; at < 1000; at += GetBlockNum() * 50) {
    auto tensor = queue.AllocTensor<int32_t>();
    Load(tensor, x[at], 50);
    queue.EnQue(tensor);
    tensor = queue.DeQue<int32_t>();
    Store(y[at], tensor, 50);
    queue.FreeTensor(tensor);
  }
}

// One buffer in a loop with flags by hand, both ways. y[i] = x[i] + 1 for i < 300.
MKV_CASE(loop_with_flags_by_hand, "", 1) {
  Kit kit(gm_x, gm_y);
  const auto loaded = kit.pipe.AllocEventID<HardEvent::MTE2_V>();
  const auto used = kit.pipe.AllocEventID<HardEvent::V_MTE2>();
  const auto computed = kit.pipe.AllocEventID<HardEvent::V_MTE3>();
  const auto stored = kit.pipe.AllocEventID<HardEvent::MTE3_V>();
  SetFlag<HardEvent::V_MTE2>(used);
  SetFlag<HardEvent::MTE3_V>(stored);
  for (int at = 0; at < 300; at += 100) {
    WaitFlag<HardEvent::V_MTE2>(used);
    Load(kit.in, kit.x[at], 100);
    SetFlag<HardEvent::MTE2_V>(loaded);
    WaitFlag<HardEvent::MTE2_V>(loaded);
    WaitFlag<HardEvent::MTE3_V>(stored);
    Adds(kit.out, kit.in, 1, 100);
    SetFlag<HardEvent::V_MTE2>(used);
    SetFlag<HardEvent::V_MTE3>(computed);
    WaitFlag<HardEvent::V_MTE3>(computed);
    Store(kit.y[at], kit.out, 100);
    SetFlag<HardEvent::MTE3_V>(stored);
  }
  WaitFlag<HardEvent::V_MTE2>(used);
  WaitFlag<HardEvent::MTE3_V>(stored);
  kit.pipe.ReleaseEventID<HardEvent::MTE2_V>(loaded);
  kit.pipe.ReleaseEventID<HardEvent::V_MTE2>(used);
  kit.pipe.ReleaseEventID<HardEvent::V_MTE3>(computed);
  kit.pipe.ReleaseEventID<HardEvent::MTE3_V>(stored);
}

// The load is known to MTE3 through V: y[i] = x[i], and nothing else ordered them.
MKV_CASE(order_is_passed_on, "", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  Sync<HardEvent::MTE2_V>();
  Sync<HardEvent::V_S>();
  Sync<HardEvent::S_MTE3>();
  Store(kit.y, kit.in, 64);
}

// Reads share bytes without any order.
MKV_CASE(reads_need_no_order, "", 2) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  PipeBarrier<PIPE_ALL>();
  Adds(kit.work, kit.in, 1, 64);
  Adds(kit.out, kit.in, 2, 64);
  kit.in.GetValue(0);
  Store(kit.y[GetBlockIdx() * 64], kit.in, 64);
}

// 4-byte loads, each in its own 32 bytes, packed by Gather: y[i] = x[31 * i + 1] for i < 32.
MKV_CASE(small_loads_gathered, "", 1) {
  Kit kit(gm_x, gm_y);
  for (int i = 0; i < 32; ++i) {
    Load(kit.in[i * 8], kit.x[31 * i + 1], 1);
  }
  CreateVecIndex(kit.work, 0, 32);
  PipeBarrier<PIPE_V>();
  Muls(kit.work, kit.work, 32, 32);
  PipeBarrier<PIPE_V>();
  Sync<HardEvent::MTE2_V>();
  Gather(kit.out, kit.in, kit.work.ReinterpretCast<uint32_t>(), 0, 32);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 32);
}

// y[i] = 100 + i for i < 203: blocks, repeats and a rest.
MKV_CASE(indices, "", 1) {
  Kit kit(gm_x, gm_y);
  CreateVecIndex(kit.out, 100, 203);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 203);
}

// Blocks with gaps on both sides and a value as padding: in UB 3, 4 | 8, 9 | ... with 6 times 77
// after each; y takes two of each block at steps of 5 elements.
MKV_CASE(blocks_with_strides, "", 1) {
  Kit kit(gm_x, gm_y);
  DataCopyPad(
      kit.in, kit.x[3], DataCopyExtParams{4, 8, 12, 1, 0},
      DataCopyPadExtParams<int32_t>{true, 0, 6, 77});
  Sync<HardEvent::MTE2_MTE3>();
  DataCopyPad(kit.y, kit.in, DataCopyExtParams{4, 8, 1, 12, 0});
  Store(kit.y[100], kit.in[16], 8);
}

// The scalar unit in between: y[0] = sum of x[0..9], y[1] = x[1023] by way of its cache.
MKV_CASE(scalar_in_between, "", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 10);
  Sync<HardEvent::MTE2_S>();
  int32_t sum = 0;
  for (int i = 0; i < 10; ++i) {
    sum += kit.in.GetValue(i);
  }
  kit.out.SetValue(0, sum);
  kit.out.SetValue(1, kit.x.GetValue(1023));
  Sync<HardEvent::S_MTE3>();
  Store(kit.y, kit.out, 2);
}

// A store beside what the scalar unit's cache holds leaves that right, if they share a line or not.
MKV_CASE(beside_a_cached_value, "", 1) {
  Kit kit(gm_x, gm_y);
  kit.y.GetValue(8);
  Duplicate(kit.out, 4, 64);
  Sync<HardEvent::V_MTE3>();
  Sync<HardEvent::S_MTE3>();
  Store(kit.y, kit.out, 8);
  Sync<HardEvent::MTE3_S>();
  kit.y.GetValue(8);
}

// What is stored is loaded again: y[64 + i] = 5 for i < 64, and y[128] by the cache.
MKV_CASE(through_global_memory, "", 1) {
  Kit kit(gm_x, gm_y);
  kit.y.GetValue(0);
  Sync<HardEvent::S_MTE3>();
  Duplicate(kit.out, 5, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 64);
  Sync<HardEvent::MTE3_MTE2>();
  Load(kit.in, kit.y, 64);
  Sync<HardEvent::MTE2_MTE3>();
  Store(kit.y[64], kit.in, 64);
  Sync<HardEvent::MTE3_S>();
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(kit.y);
  kit.y.SetValue(128, kit.y.GetValue(0) + 1);
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(
      kit.y[128]);
}

// The whole cache is invalidated: y[0] and y[63] are what the copy wrote.
MKV_CASE(reads_a_copy_after_invalidating, "", 1) {
  Kit kit(gm_x, gm_y);
  Duplicate(kit.out, 6, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 64);
  Sync<HardEvent::MTE3_S>();
  DataCacheCleanAndInvalid<int32_t, CacheLine::ENTIRE_DATA_CACHE, DcciDst::CACHELINE_OUT>(kit.y);
  kit.out.SetValue(0, kit.y.GetValue(0) + kit.y.GetValue(63));
  Sync<HardEvent::S_MTE3>();
  Store(kit.y[64], kit.out, 1);
}

// The line of what is read, and no more.
MKV_CASE(invalidates_an_input_first, "", 1) {
  Kit kit(gm_x, gm_y, false);
  DataCacheCleanAndInvalid<int32_t, CacheLine::SINGLE_CACHE_LINE, DcciDst::CACHELINE_OUT>(kit.x);
  kit.out.SetValue(0, kit.x.GetValue(7));
  Sync<HardEvent::S_MTE3>();
  Store(kit.y, kit.out, 1);
}

// A rounded count computes with junk, which is not stored: y[i] = min(max(x[i] - 2, 0), 1).
MKV_CASE(junk_beside_the_data, "", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 5);
  Sync<HardEvent::MTE2_V>();
  Adds(kit.work, kit.in, -2, 64);
  PipeBarrier<PIPE_V>();
  Maxs(kit.work, kit.work, 0, 64);
  PipeBarrier<PIPE_V>();
  Mins(kit.out, kit.work, 1, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 5);
}

// Junk times 0 is 0, and 0 & junk: y[i] = x[i] for i < 5, 0 to 8, and 0 from 64 to 72.
MKV_CASE(junk_masked_away, "", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 5);
  Duplicate(kit.work, 0, 64);
  PipeBarrier<PIPE_V>();
  Duplicate(kit.work, 1, 5);
  Sync<HardEvent::MTE2_V>();
  PipeBarrier<PIPE_V>();
  Mul(kit.out, kit.in, kit.work, 8);
  And(kit.out[64].ReinterpretCast<int16_t>(), kit.work[8].ReinterpretCast<int16_t>(),
      kit.in[8].ReinterpretCast<int16_t>(), 16);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 8);
  Store(kit.y[64], kit.out[64], 8);
}

// Shifts and bits: y[i] = x[i] << 3 >> 2, y[64 + i] = -x[i] >> 1, y[128 + i] = x[i] & 6 | 1.
MKV_CASE(shifts_and_bits, "", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  Duplicate(kit.work, 6, 64);
  Duplicate(kit.work[64], 1, 64);
  Sync<HardEvent::MTE2_V>();
  PipeBarrier<PIPE_V>();
  ShiftLeft(kit.out, kit.in, 3, 64);
  PipeBarrier<PIPE_V>();
  ShiftRight(kit.out, kit.out, 2, 64);
  Muls(kit.out[64], kit.in, -1, 64);
  PipeBarrier<PIPE_V>();
  ShiftRight(kit.out[64], kit.out[64], 1, 64);
  // Twice as many elements of 16 bits.
  const auto bits = kit.out[128].ReinterpretCast<int16_t>();
  And(bits, kit.in.ReinterpretCast<int16_t>(), kit.work.ReinterpretCast<int16_t>(), 128);
  PipeBarrier<PIPE_V>();
  Or(bits, bits, kit.work[64].ReinterpretCast<int16_t>(), 128);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 192);
}

// y[i] = floor(x[i] / 3) by way of float, y[64 + i] = x[i] by way of int64.
MKV_CASE(casts, "", 1) {
  Kit kit(gm_x, gm_y);
  Load(kit.in, kit.x, 64);
  Sync<HardEvent::MTE2_V>();
  const auto reals = kit.work.ReinterpretCast<float>();
  Cast(reals, kit.in, RoundMode::CAST_NONE, 64);
  PipeBarrier<PIPE_V>();
  Adds(reals, reals, 0.5F, 64);
  PipeBarrier<PIPE_V>();
  Muls(reals, reals, 1.0F / 3.0F, 64);
  PipeBarrier<PIPE_V>();
  Cast(kit.out, reals, RoundMode::CAST_FLOOR, 64);
  PipeBarrier<PIPE_V>();
  const auto wide = kit.work.ReinterpretCast<int64_t>();
  Cast(wide, kit.in, RoundMode::CAST_NONE, 64);
  PipeBarrier<PIPE_V>();
  Cast(kit.out[64], wide, RoundMode::CAST_NONE, 64);
  Sync<HardEvent::V_MTE3>();
  Store(kit.y, kit.out, 128);
}

// All of 184 KB, and 64 buffers.
MKV_CASE(all_memory, "", 1) {
  TPipe pipe;
  TBuf<> buffers[64];
  for (int i = 0; i < 63; ++i) {
    pipe.InitBuffer(buffers[i], 1);
  }
  pipe.InitBuffer(buffers[63], 184 * 1024 - 63 * 32);
}

// Nothing is copied where a count or length is 0; fewer tasks than cores.
MKV_CASE(nothing_to_do, "", 4) {
  Kit kit(gm_x, gm_y);
  if (GetBlockIdx() != 0) {
    return;
  }
  Load(kit.in, kit.x[1024], 0);
  DataCopyPad(kit.y[1024], kit.in, DataCopyExtParams{0, 4, 0, 0, 0});
}

// Types of two bytes and one: y[0..15] = the bytes of x[0..15].
MKV_CASE(bytes_and_halves, "", 1) {
  TPipe pipe;
  TBuf<TPosition::VECIN> buffer;
  pipe.InitBuffer(buffer, 64);
  GlobalTensor<uint8_t> x;
  GlobalTensor<half> y;
  x.SetGlobalBuffer(gm_x);
  y.SetGlobalBuffer(reinterpret_cast<__gm__ half*>(gm_y));
  const auto bytes = buffer.Get<uint8_t>();
  DataCopyPad(
      bytes, x, DataCopyExtParams{1, 61, 0, 0, 0}, DataCopyPadExtParams<uint8_t>{false, 0, 0, 0});
  DataCopyPad(
      bytes[32], x[32], DataCopyExtParams{0, 61, 0, 0, 0},
      DataCopyPadExtParams<uint8_t>{false, 0, 0, 0});
  PipeBarrier<PIPE_MTE2>();
  DataCopyPad(
      bytes[32], x[32], DataCopyExtParams{1, 32, 0, 0, 0},
      DataCopyPadExtParams<uint8_t>{false, 0, 0, 0});
  Sync<HardEvent::MTE2_MTE3>();
  DataCopyPad(y, bytes.ReinterpretCast<half>(), DataCopyExtParams{1, 64, 0, 0, 0});
}
