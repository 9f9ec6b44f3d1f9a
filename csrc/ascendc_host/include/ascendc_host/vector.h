// SPDX-License-Identifier: Apache-2.0
// Vector instructions in their forms with a count: arithmetic, shifts, bits, Duplicate. Which types
// exist is that of arch 2201; any other type does not compile. Junk elements may be computed with,
// the result is junk then.
#ifndef MKV_ASCENDC_HOST_VECTOR_H_
#define MKV_ASCENDC_HOST_VECTOR_H_

#include <cstring>
#include <string>
#include <type_traits>

#include "pipe.h"

namespace ascendc_host {

template <typename T, typename... Types>
constexpr bool kOneOf = (std::is_same<T, Types>::value || ...);

template <typename T>
constexpr bool kTwoByteFloat = kOneOf<T, half, bfloat16_t>;

// What Add, Sub, Mul, Max and Min and their forms with a scalar take.
template <typename T>
constexpr void NeedArithmeticType() {
  static_assert(!kTwoByteFloat<T>, "arithmetic of half is not modelled by ascendc_host");
  static_assert(
      kTwoByteFloat<T> || kOneOf<T, int16_t, int32_t, float>,
      "arch 2201 has this for int16_t, int32_t, half and float only");
}

template <typename T>
constexpr void NeedShiftType() {
  static_assert(
      kOneOf<T, int16_t, uint16_t, int32_t, uint32_t>,
      "arch 2201 shifts 16-bit and 32-bit integers only");
}

template <typename T>
constexpr void NeedBitwiseType() {
  static_assert(
      kOneOf<T, int16_t, uint16_t>,
      "arch 2201 has And, Or and Not for int16_t and uint16_t only. On the NPU a count of "
      "a 32-bit type compiles and handles `count` 16-bit words, half of what is meant: "
      "ReinterpretCast<int16_t> both and give twice the count");
}

// A vector instruction over `count` elements of one or more operands in UB.
class VectorInstruction : public Instruction {
 public:
  VectorInstruction(const char* name, int64_t count, uint64_t widest, Where where)
      : Instruction(PIPE_V, name, where), count_(count) {
    if (count <= 0) {
      Fail("argument", "count is " + std::to_string(count) + "; at least 1");
    }
    core().counters().vector_repeats +=
        static_cast<int64_t>((count * widest + kRepeatBytes - 1) / kRepeatBytes);
  }

  void Source(const UbPlace& place, uint64_t element_bytes) {
    NeedAligned(place);
    Read(place, count_ * element_bytes);
  }
  void Target(const UbPlace& place, uint64_t element_bytes) {
    NeedAligned(place);
    Write(place, count_ * element_bytes);
  }

  // An operand may lie exactly on the result where elements have one size, else not share a byte.
  void NeedNoOverlap(
      const UbPlace& target, uint64_t target_bytes, const UbPlace& source, uint64_t source_bytes,
      bool in_place) {
    if (in_place && target.at == source.at) {
      return;
    }
    const bool overlap = target.at < source.at + count_ * source_bytes &&
                         source.at < target.at + count_ * target_bytes;
    if (overlap) {
      Fail("overlap", "result and operand overlap in part", core().buffer(target.buffer).name);
    }
  }

  template <typename T>
  T Load(const UbPlace& place, int64_t index) {
    T value;
    std::memcpy(&value, core().ub(place.at + static_cast<uint32_t>(index * sizeof(T))), sizeof(T));
    return value;
  }
  template <typename T>
  void Store(const UbPlace& place, int64_t index, T value, bool undefined) {
    const auto at = place.at + static_cast<uint32_t>(index * sizeof(T));
    std::memcpy(core().ub(at), &value, sizeof(T));
    std::memset(core().undefined(at), undefined ? 1 : 0, sizeof(T));
  }
  template <typename T>
  bool Junk(const UbPlace& place, int64_t index) {
    const auto at = place.at + static_cast<uint32_t>(index * sizeof(T));
    return std::memchr(core().undefined(at), 1, sizeof(T)) != nullptr;
  }

  int64_t count() const {
    return count_;
  }

 private:
  int64_t count_;
};

// Integer results wrap around, as two's complement does; `wrapped` says that one did.
template <typename T>
struct Arithmetic {
  static T Add(T a, T b, bool* wrapped) {
    if constexpr (std::is_integral<T>::value) {
      T result;
      *wrapped = __builtin_add_overflow(a, b, &result);
      return result;
    } else {
      return a + b;
    }
  }
  static T Sub(T a, T b, bool* wrapped) {
    if constexpr (std::is_integral<T>::value) {
      T result;
      *wrapped = __builtin_sub_overflow(a, b, &result);
      return result;
    } else {
      return a - b;
    }
  }
  static T Mul(T a, T b, bool* wrapped) {
    if constexpr (std::is_integral<T>::value) {
      T result;
      *wrapped = __builtin_mul_overflow(a, b, &result);
      return result;
    } else {
      return a * b;
    }
  }
  static T Max(T a, T b, bool*) {
    return a > b ? a : b;
  }
  static T Min(T a, T b, bool*) {
    return a < b ? a : b;
  }
  static T And(T a, T b, bool*) {
    return static_cast<T>(a & b);
  }
  static T Or(T a, T b, bool*) {
    return static_cast<T>(a | b);
  }
};

// Whether a result is junk where one operand is: not if the other is an integer 0 that makes it 0.
template <typename T>
bool JunkProduct(bool junk0, T value0, bool junk1, T value1) {
  if constexpr (std::is_integral<T>::value) {
    return (junk0 && junk1) || (junk0 && value1 != 0) || (junk1 && value0 != 0);
  } else {
    return junk0 || junk1;
  }
}

template <typename T, typename Function>
void Binary(
    const char* name, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src0,
    const AscendC::LocalTensor<T>& src1, int64_t count, Where where, bool zero_decides,
    Function function) {
  VectorInstruction instruction(name, count, sizeof(T), where);
  instruction.Source(src0.place(), sizeof(T));
  instruction.Source(src1.place(), sizeof(T));
  instruction.Target(dst.place(), sizeof(T));
  instruction.NeedNoOverlap(dst.place(), sizeof(T), src0.place(), sizeof(T), true);
  instruction.NeedNoOverlap(dst.place(), sizeof(T), src1.place(), sizeof(T), true);
  for (int64_t i = 0; i < count; ++i) {
    const bool junk0 = instruction.Junk<T>(src0.place(), i);
    const bool junk1 = instruction.Junk<T>(src1.place(), i);
    const T value0 = instruction.Load<T>(src0.place(), i);
    const T value1 = instruction.Load<T>(src1.place(), i);
    const bool junk = zero_decides ? JunkProduct(junk0, value0, junk1, value1) : junk0 || junk1;
    bool wrapped = false;
    const T value = function(value0, value1, &wrapped);
    instruction.core().counters().wrapped += wrapped && !junk;
    instruction.Store<T>(dst.place(), i, value, junk);
  }
}

template <typename T, typename Function>
void Unary(
    const char* name, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
    int64_t count, Where where, Function function) {
  VectorInstruction instruction(name, count, sizeof(T), where);
  instruction.Source(src.place(), sizeof(T));
  instruction.Target(dst.place(), sizeof(T));
  instruction.NeedNoOverlap(dst.place(), sizeof(T), src.place(), sizeof(T), true);
  for (int64_t i = 0; i < count; ++i) {
    const bool junk = instruction.Junk<T>(src.place(), i);
    bool wrapped = false;
    const T value = function(instruction.Load<T>(src.place(), i), &wrapped);
    instruction.core().counters().wrapped += wrapped && !junk;
    instruction.Store<T>(dst.place(), i, value, junk);
  }
}

}  // namespace ascendc_host

// Each with two tensors: dst = src0 OP src1.
#define MKV_BINARY(NAME, NEED, ZERO_DECIDES)                                                    \
  namespace AscendC {                                                                           \
  template <typename T>                                                                         \
  void NAME(                                                                                    \
      const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,        \
      const int32_t& count, Where where = Where::Here()) {                                      \
    ascendc_host::NEED<T>();                                                                    \
    ascendc_host::Binary(                                                                       \
        #NAME, dst, src0, src1, count, where, ZERO_DECIDES, ascendc_host::Arithmetic<T>::NAME); \
  }                                                                                             \
  }
MKV_BINARY(Add, NeedArithmeticType, false)
MKV_BINARY(Sub, NeedArithmeticType, false)
MKV_BINARY(Mul, NeedArithmeticType, true)
MKV_BINARY(Max, NeedArithmeticType, false)
MKV_BINARY(Min, NeedArithmeticType, false)
MKV_BINARY(And, NeedBitwiseType, true)
MKV_BINARY(Or, NeedBitwiseType, false)
#undef MKV_BINARY

// Each with a scalar of exactly the tensor's type: dst = src OP scalarValue.
#define MKV_SCALAR(NAME, OPERATION)                                                  \
  namespace AscendC {                                                                \
  template <typename T, bool isSetMask = true>                                       \
  void NAME(                                                                         \
      const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,    \
      const int32_t& count, Where where = Where::Here()) {                           \
    ascendc_host::NeedArithmeticType<T>();                                           \
    ascendc_host::Unary(#NAME, dst, src, count, where, [&](T value, bool* wrapped) { \
      return ascendc_host::Arithmetic<T>::OPERATION(value, scalarValue, wrapped);    \
    });                                                                              \
  }                                                                                  \
  }
MKV_SCALAR(Adds, Add)
MKV_SCALAR(Muls, Mul)
MKV_SCALAR(Maxs, Max)
MKV_SCALAR(Mins, Min)
#undef MKV_SCALAR

namespace ascendc_host {

// The right shift of a signed type keeps the sign; an amount of the full width leaves 0 or -1.
template <typename T>
void Shift(
    const char* name, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src,
    T amount, int64_t count, Where where, bool left) {
  NeedShiftType<T>();
  constexpr int kBits = 8 * sizeof(T);
  const auto by = static_cast<int64_t>(amount);
  if (by < 0 || by > kBits) {
    Core::OfThisThread().Fail(
        "argument",
        std::string(name) + ": shift by " + std::to_string(by) + "; 0 to " + std::to_string(kBits),
        where);
  }
  Unary(name, dst, src, count, where, [&](T value, bool*) {
    // 64 bits hold every shift of a 32-bit value.
    if (left) {
      return static_cast<T>(static_cast<uint64_t>(static_cast<int64_t>(value)) << by);
    }
    return static_cast<T>(static_cast<int64_t>(value) >> by);
  });
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T, bool isSetMask = true>
void ShiftLeft(
    const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,
    const int32_t& count, Where where = Where::Here()) {
  ascendc_host::Shift("ShiftLeft", dst, src, scalarValue, count, where, true);
}

template <typename T, bool isSetMask = true>
void ShiftRight(
    const LocalTensor<T>& dst, const LocalTensor<T>& src, const T& scalarValue,
    const int32_t& count, Where where = Where::Here()) {
  ascendc_host::Shift("ShiftRight", dst, src, scalarValue, count, where, false);
}

template <typename T>
void Duplicate(
    const LocalTensor<T>& dst, const T& scalarValue, const int32_t& count,
    Where where = Where::Here()) {
  static_assert(
      ascendc_host::kTwoByteFloat<T> ||
          ascendc_host::kOneOf<T, int16_t, uint16_t, int32_t, uint32_t, float>,
      "arch 2201 duplicates 16-bit and 32-bit types only");
  ascendc_host::VectorInstruction instruction("Duplicate", count, sizeof(T), where);
  instruction.Target(dst.place(), sizeof(T));
  for (int64_t i = 0; i < count; ++i) {
    instruction.Store<T>(dst.place(), i, scalarValue, false);
  }
}

// UB to UB, by the vector pipe.
template <typename T>
void DataCopy(
    const LocalTensor<T>& dst, const LocalTensor<T>& src, const uint32_t count,
    Where where = Where::Here()) {
  ascendc_host::VectorInstruction instruction("DataCopy", count, sizeof(T), where);
  if (count * sizeof(T) % ascendc_host::kBlockBytes != 0) {
    instruction.Fail(
        "argument", "DataCopy moves whole 32-byte blocks, asked for " +
                        std::to_string(count * sizeof(T)) + " bytes");
  }
  instruction.Source(src.place(), sizeof(T));
  instruction.Target(dst.place(), sizeof(T));
  instruction.NeedNoOverlap(dst.place(), sizeof(T), src.place(), sizeof(T), false);
  for (int64_t i = 0; i < count; ++i) {
    instruction.Store<T>(
        dst.place(), i, instruction.Load<T>(src.place(), i), instruction.Junk<T>(src.place(), i));
  }
}

}  // namespace AscendC

#endif  // MKV_ASCENDC_HOST_VECTOR_H_
