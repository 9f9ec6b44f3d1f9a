// SPDX-License-Identifier: Apache-2.0
// Each line marked WRONG must be an error of the compiler, and no other. With ONLY_RIGHT defined
// the file compiles. One failed instantiation is reported once, so each line has a type of its own.
#include "kernel_operator.h"

using namespace AscendC;

#ifdef ONLY_RIGHT
#define WRONG(...)
#else
#define WRONG(...) __VA_ARGS__
#endif

template <typename T>
using Local = LocalTensor<T>;

void Kernel(
    Local<int32_t> i, Local<int64_t> l, Local<int16_t> s, Local<int8_t> b, Local<half> h,
    Local<float> f, Local<uint32_t> u, Local<uint16_t> w, GlobalTensor<int32_t> g, TPipe& pipe) {
  Add(i, i, i, 8);
  WRONG(Add(l, l, l, 8);)
  WRONG(Sub(b, b, b, 8);)
  WRONG(Mul(h, h, h, 8);)
  WRONG(Max(u, u, u, 8);)
  WRONG(Add(i, i, s, 8);)
  Adds(i, i, 1, 8);
  WRONG(Adds(w, w, uint16_t{1}, 8);)
  WRONG(Adds(i, i, int64_t{1}, 8);)
  WRONG(Adds(s, s, 1, 8);)
  And(s, s, s, 8);
  WRONG(And(i, i, i, 8);)
  WRONG(Or(b, b, b, 8);)
  WRONG(Or(u, u, u, 8);)
  ShiftRight(u, u, uint32_t{1}, 8);
  WRONG(ShiftRight(l, l, int64_t{1}, 8);)
  WRONG(ShiftLeft(f, f, 1.0F, 8);)
  Duplicate(i, 1, 8);
  WRONG(Duplicate(b, int8_t{1}, 8);)
  WRONG(Duplicate(l, int64_t{1}, 8);)
  CreateVecIndex(i, 0, 8);
  WRONG(CreateVecIndex(l, int64_t{0}, 8);)
  WRONG(CreateVecIndex(u, uint32_t{0}, 8);)
  Gather(i, i, u, 0, 8);
  WRONG(Gather(l, l, u, 0, 8);)
  WRONG(Gather(b, b, u, 0, 8);)
  WRONG(Gather(i, i, i, 0, 8);)
  Cast(l, i, RoundMode::CAST_NONE, 8);
  WRONG(Cast(l, s, RoundMode::CAST_NONE, 8);)
  WRONG(Cast(u, i, RoundMode::CAST_NONE, 8);)
  WRONG(Cast(i, s, RoundMode::CAST_NONE, 8);)
  WRONG(Compare(b, i, i, 0, 8);)
  WRONG(Compares(b, i, 1, 0, 8);)
  WRONG(CompareScalar(b, i, 1, 0, 8);)
  WRONG(Select(i, b, i, i, 0, 8);)
  WRONG(Scatter(i, i, u, 0, 8);)
  WRONG(Div(f, f, f, 8);)
  WRONG(Not(s, s, 8);)
  PipeBarrier<PIPE_V>();
  WRONG(PipeBarrier<PIPE_S>();)
  WRONG(SetFlag<HardEvent::V_V>(0);)
  TQue<TPosition::VECIN, 1> queue;
  WRONG(TQue<TPosition::VECCALC, 1> of_calc; pipe.InitBuffer(of_calc, 1, 32);)
  WRONG(TQue<TPosition::VECIN, 0> in_place; pipe.InitBuffer(in_place, 1, 32);)
  pipe.InitBuffer(queue, 1, 32);
  DataCopy(i, g, 8);
  WRONG(DataCopy(l, g, 8);)
  WRONG(DataCopyPad(i, g, DataCopyExtParams{1, 4, 0, 0, 0}, DataCopyPadExtParams<float>{});)
}
