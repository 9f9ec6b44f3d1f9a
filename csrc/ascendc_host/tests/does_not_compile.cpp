// SPDX-License-Identifier: Apache-2.0
// Each line marked MKV_WRONG must be an error of the compiler, and no other. With MKV_ONLY_RIGHT
// defined the file compiles. One failed instantiation is reported once, so each line has a type of
// its own.
#include "kernel_operator.h"

using namespace AscendC;

#ifdef MKV_ONLY_RIGHT
#define MKV_WRONG(...)
#else
#define MKV_WRONG(...) __VA_ARGS__
#endif

template <typename T>
using Local = LocalTensor<T>;

__aicore__ void Kernel(
    Local<int32_t> i, Local<int64_t> l, Local<int16_t> s, Local<int8_t> b, Local<half> h,
    Local<float> f, Local<uint32_t> u, Local<uint16_t> w, GlobalTensor<int32_t> g, TPipe& pipe) {
  Add(i, i, i, 8);
  MKV_WRONG(Add(l, l, l, 8);)
  MKV_WRONG(Sub(b, b, b, 8);)
  MKV_WRONG(Mul(h, h, h, 8);)
  MKV_WRONG(Max(u, u, u, 8);)
  MKV_WRONG(Add(i, i, s, 8);)
  Adds(i, i, 1, 8);
  MKV_WRONG(Adds(w, w, uint16_t{1}, 8);)
  MKV_WRONG(Adds(i, i, int64_t{1}, 8);)
  MKV_WRONG(Adds(s, s, 1, 8);)
  And(s, s, s, 8);
  MKV_WRONG(And(i, i, i, 8);)
  MKV_WRONG(Or(b, b, b, 8);)
  MKV_WRONG(Or(u, u, u, 8);)
  ShiftRight(u, u, uint32_t{1}, 8);
  MKV_WRONG(ShiftRight(l, l, int64_t{1}, 8);)
  MKV_WRONG(ShiftLeft(f, f, 1.0F, 8);)
  Duplicate(i, 1, 8);
  MKV_WRONG(Duplicate(b, int8_t{1}, 8);)
  MKV_WRONG(Duplicate(l, int64_t{1}, 8);)
  CreateVecIndex(i, 0, 8);
  MKV_WRONG(CreateVecIndex(l, int64_t{0}, 8);)
  MKV_WRONG(CreateVecIndex(u, uint32_t{0}, 8);)
  Gather(i, i, u, 0, 8);
  MKV_WRONG(Gather(l, l, u, 0, 8);)
  MKV_WRONG(Gather(b, b, u, 0, 8);)
  MKV_WRONG(Gather(i, i, i, 0, 8);)
  Cast(l, i, RoundMode::CAST_NONE, 8);
  MKV_WRONG(Cast(l, s, RoundMode::CAST_NONE, 8);)
  MKV_WRONG(Cast(u, i, RoundMode::CAST_NONE, 8);)
  MKV_WRONG(Cast(i, s, RoundMode::CAST_NONE, 8);)
  MKV_WRONG(Compare(b, i, i, 0, 8);)
  MKV_WRONG(Compares(b, i, 1, 0, 8);)
  MKV_WRONG(CompareScalar(b, i, 1, 0, 8);)
  MKV_WRONG(Select(i, b, i, i, 0, 8);)
  MKV_WRONG(Scatter(i, i, u, 0, 8);)
  MKV_WRONG(Div(f, f, f, 8);)
  MKV_WRONG(Not(s, s, 8);)
  PipeBarrier<PIPE_V>();
  MKV_WRONG(PipeBarrier<PIPE_S>();)
  MKV_WRONG(SetFlag<HardEvent::V_V>(0);)
  TQue<TPosition::VECIN, 1> queue;
  MKV_WRONG(TQue<TPosition::VECCALC, 1> of_calc; pipe.InitBuffer(of_calc, 1, 32);)
  MKV_WRONG(TQue<TPosition::VECIN, 0> in_place; pipe.InitBuffer(in_place, 1, 32);)
  pipe.InitBuffer(queue, 1, 32);
  DataCopy(i, g, 8);
  MKV_WRONG(DataCopy(l, g, 8);)
  GetTPipePtr()->FetchEventID(HardEvent::V_S);
  MKV_WRONG(AscendC::GetTPipePtr();)
  MKV_WRONG(DataCopyPad(i, g, DataCopyExtParams{1, 4, 0, 0, 0}, DataCopyPadExtParams<float>{});)
}
