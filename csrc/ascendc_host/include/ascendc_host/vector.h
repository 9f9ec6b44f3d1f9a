// SPDX-License-Identifier: Apache-2.0
// Vector instructions in their forms with a count. Which types exist is that of arch 2201; any
// other type does not compile. Junk elements may be computed with, the result is junk then.
#ifndef ASCENDC_HOST_VECTOR_H_
#define ASCENDC_HOST_VECTOR_H_

#include <cmath>
#include <cstring>
#include <limits>
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

template <typename T, typename Function>
void Binary(
    const char* name, const AscendC::LocalTensor<T>& dst, const AscendC::LocalTensor<T>& src0,
    const AscendC::LocalTensor<T>& src1, int64_t count, Where where, Function function) {
  VectorInstruction instruction(name, count, sizeof(T), where);
  instruction.Source(src0.place(), sizeof(T));
  instruction.Source(src1.place(), sizeof(T));
  instruction.Target(dst.place(), sizeof(T));
  instruction.NeedNoOverlap(dst.place(), sizeof(T), src0.place(), sizeof(T), true);
  instruction.NeedNoOverlap(dst.place(), sizeof(T), src1.place(), sizeof(T), true);
  for (int64_t i = 0; i < count; ++i) {
    const bool junk = instruction.Junk<T>(src0.place(), i) || instruction.Junk<T>(src1.place(), i);
    bool wrapped = false;
    const T value = function(
        instruction.Load<T>(src0.place(), i), instruction.Load<T>(src1.place(), i), &wrapped);
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
#define ASCENDC_HOST_BINARY(NAME, NEED)                                                            \
  namespace AscendC {                                                                              \
  template <typename T>                                                                            \
  void NAME(                                                                                       \
      const LocalTensor<T>& dst, const LocalTensor<T>& src0, const LocalTensor<T>& src1,           \
      const int32_t& count, Where where = Where::Here()) {                                         \
    ascendc_host::NEED<T>();                                                                       \
    ascendc_host::Binary(#NAME, dst, src0, src1, count, where, ascendc_host::Arithmetic<T>::NAME); \
  }                                                                                                \
  }
ASCENDC_HOST_BINARY(Add, NeedArithmeticType)
ASCENDC_HOST_BINARY(Sub, NeedArithmeticType)
ASCENDC_HOST_BINARY(Mul, NeedArithmeticType)
ASCENDC_HOST_BINARY(Max, NeedArithmeticType)
ASCENDC_HOST_BINARY(Min, NeedArithmeticType)
ASCENDC_HOST_BINARY(And, NeedBitwiseType)
ASCENDC_HOST_BINARY(Or, NeedBitwiseType)
#undef ASCENDC_HOST_BINARY

// Each with a scalar of exactly the tensor's type: dst = src OP scalarValue.
#define ASCENDC_HOST_SCALAR(NAME, OPERATION)                                         \
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
ASCENDC_HOST_SCALAR(Adds, Add)
ASCENDC_HOST_SCALAR(Muls, Mul)
ASCENDC_HOST_SCALAR(Maxs, Max)
ASCENDC_HOST_SCALAR(Mins, Min)
#undef ASCENDC_HOST_SCALAR

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

// dst[i] = the element at byte srcBaseOffset + srcOffset[i] of src.
template <typename T>
void Gather(
    const LocalTensor<T>& dst, const LocalTensor<T>& src, const LocalTensor<uint32_t>& srcOffset,
    const uint32_t srcBaseOffset, const uint32_t count, Where where = Where::Here()) {
  static_assert(
      ascendc_host::kTwoByteFloat<T> ||
          ascendc_host::kOneOf<T, int16_t, uint16_t, int32_t, uint32_t, float>,
      "arch 2201 gathers 16-bit and 32-bit types only");
  ascendc_host::VectorInstruction instruction("Gather", count, sizeof(uint32_t), where);
  instruction.NeedAligned(src.place());
  instruction.Source(srcOffset.place(), sizeof(uint32_t));
  instruction.NeedDefined(srcOffset.place(), count * sizeof(uint32_t), "takes as an offset");
  instruction.NeedNoOverlap(dst.place(), sizeof(T), srcOffset.place(), sizeof(uint32_t), false);
  std::vector<T> values(count);
  std::vector<uint8_t> junk(count);
  for (uint32_t i = 0; i < count; ++i) {
    const uint64_t offset =
        uint64_t{srcBaseOffset} + instruction.Load<uint32_t>(srcOffset.place(), i);
    if (offset % sizeof(T) != 0) {
      instruction.Fail(
          "argument", "offset " + std::to_string(offset) +
                          " bytes is not a multiple of the element's " + std::to_string(sizeof(T)));
    }
    auto element = src.place();
    element.at = static_cast<uint32_t>(std::min<uint64_t>(src.place().at + offset, UINT32_MAX));
    instruction.Read(element, sizeof(T));
    values[i] = instruction.Load<T>(element, 0);
    junk[i] = instruction.Junk<T>(element, 0);
    const uint64_t end = dst.place().at + uint64_t{count} * sizeof(T);
    if (element.at < end && dst.place().at < element.at + sizeof(T)) {
      instruction.Fail("overlap", "gathers from its own result");
    }
  }
  instruction.Target(dst.place(), sizeof(T));
  for (uint32_t i = 0; i < count; ++i) {
    instruction.Store<T>(dst.place(), i, values[i], junk[i] != 0);
  }
}

}  // namespace AscendC

namespace ascendc_host {

template <typename T, typename U>
constexpr bool kCasts =
    (kOneOf<T, float> && kOneOf<U, int32_t, int64_t>) ||
    (kOneOf<T, int32_t> && kOneOf<U, float, int64_t>) ||
    (kOneOf<T, int64_t> && kOneOf<U, float, int32_t>) || (kOneOf<T, int16_t> && kOneOf<U, int32_t>);

// To nearest with ties to even, whatever the host's rounding mode is.
inline double NearestEven(double value) {
  const double floor = std::floor(value);
  const double rest = value - floor;
  if (rest != 0.5) {
    return rest < 0.5 ? floor : floor + 1;
  }
  return std::fmod(floor, 2) == 0 ? floor : floor + 1;
}

inline double Rounded(Instruction& instruction, double value, AscendC::RoundMode mode) {
  switch (mode) {
    case AscendC::RoundMode::CAST_RINT:
      return NearestEven(value);
    case AscendC::RoundMode::CAST_FLOOR:
      return std::floor(value);
    case AscendC::RoundMode::CAST_CEIL:
      return std::ceil(value);
    case AscendC::RoundMode::CAST_ROUND:
      return std::round(value);
    case AscendC::RoundMode::CAST_TRUNC:
      return std::trunc(value);
    default:
      instruction.Fail(
          "argument",
          "from float to an integer a rounding mode is needed: CAST_RINT, "
          "CAST_FLOOR, CAST_CEIL, CAST_ROUND or CAST_TRUNC");
  }
}

// What a value out of the target's range becomes is not documented.
template <typename T>
bool Fits(double value) {
  return value >= static_cast<double>(std::numeric_limits<T>::min()) &&
         value < -static_cast<double>(std::numeric_limits<T>::min());
}

template <typename T, typename U>
T Converted(Instruction& instruction, U value, AscendC::RoundMode mode, bool junk) {
  if constexpr (std::is_same<T, float>::value) {
    return static_cast<float>(value);
  } else if constexpr (std::is_same<U, float>::value) {
    const double rounded = Rounded(instruction, static_cast<double>(value), mode);
    if (Fits<T>(rounded)) {
      return static_cast<T>(rounded);
    }
  } else {
    const auto wide = static_cast<int64_t>(value);
    if (wide >= std::numeric_limits<T>::min() && wide <= std::numeric_limits<T>::max()) {
      return static_cast<T>(wide);
    }
  }
  if (!junk) {
    instruction.Add(
        "cast_range",
        "a value does not fit the result's type; what the NPU makes of it "
        "is not documented");
  }
  return T{};
}

}  // namespace ascendc_host

namespace AscendC {

template <typename T, typename U>
void Cast(
    const LocalTensor<T>& dst, const LocalTensor<U>& src, const RoundMode& roundMode,
    const uint32_t count, Where where = Where::Here()) {
  static_assert(
      ascendc_host::kCasts<T, U>,
      "ascendc_host casts int32 with float, int32 with int64, int64 with float, and int32 "
      "to int16");
  constexpr auto kWidest = sizeof(T) > sizeof(U) ? sizeof(T) : sizeof(U);
  ascendc_host::VectorInstruction instruction("Cast", count, kWidest, where);
  const bool between_integers = std::is_integral<T>::value && std::is_integral<U>::value;
  if (between_integers && roundMode != RoundMode::CAST_NONE) {
    instruction.Fail("argument", "between integers the rounding mode is CAST_NONE");
  }
  instruction.Source(src.place(), sizeof(U));
  instruction.Target(dst.place(), sizeof(T));
  instruction.NeedNoOverlap(dst.place(), sizeof(T), src.place(), sizeof(U), sizeof(T) == sizeof(U));
  for (int64_t i = 0; i < count; ++i) {
    const bool junk = instruction.Junk<U>(src.place(), i);
    const T value = ascendc_host::Converted<T>(
        instruction, instruction.Load<U>(src.place(), i), roundMode, junk);
    instruction.Store<T>(dst.place(), i, value, junk);
  }
}

// dst[i] = firstValue + i. On the NPU this is a library routine: the scalar unit writes the first
// block and sets a flag for the vector pipe, which doubles up from there with barriers between, and
// none after the last rest. So a buffer that the vector pipe used before needs V_S first.
template <typename T>
void CreateVecIndex(
    LocalTensor<T> dst, const T& firstValue, uint32_t count, Where where = Where::Here()) {
  static_assert(
      ascendc_host::kOneOf<T, int16_t, int32_t, float>,
      "CreateVecIndex takes int16_t, int32_t, float (and half, which is not modelled)");
  constexpr uint32_t kBlock = ascendc_host::kBlockBytes / sizeof(T);
  constexpr uint32_t kRepeat = ascendc_host::kRepeatBytes / sizeof(T);
  for (uint32_t i = 0; i < std::min(count, kBlock); ++i) {
    dst.SetValue(i, static_cast<T>(firstValue + static_cast<T>(i)), where);
  }
  auto* pipe = GetTPipePtr(where);
  const auto event = pipe->FetchEventID(HardEvent::S_V, where);
  SetFlag<HardEvent::S_V>(event, where);
  WaitFlag<HardEvent::S_V>(event, where);
  if (count <= kBlock) {
    return;
  }
  const auto extend = [&](uint32_t from, uint32_t step, uint32_t length) {
    Adds(dst[from], dst[from - step], static_cast<T>(step), static_cast<int32_t>(length), where);
  };
  const uint32_t first = std::min(count, kRepeat);
  for (uint32_t at = kBlock; at < first; at += kBlock) {
    extend(at, kBlock, std::min(kBlock, first - at));
    PipeBarrier<PIPE_V>();
  }
  for (uint32_t at = kRepeat; at < count; at += kRepeat) {
    extend(at, kRepeat, std::min(kRepeat, count - at));
    if (at + kRepeat <= count) {
      PipeBarrier<PIPE_V>();
    }
  }
}

}  // namespace AscendC

#endif  // ASCENDC_HOST_VECTOR_H_
