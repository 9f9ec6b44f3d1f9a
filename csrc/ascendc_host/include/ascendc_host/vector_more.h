// SPDX-License-Identifier: Apache-2.0
// The vector instructions that are not elementwise on one type: Gather, Cast and CreateVecIndex.
#ifndef MKV_ASCENDC_HOST_VECTOR_MORE_H_
#define MKV_ASCENDC_HOST_VECTOR_MORE_H_

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "vector.h"

namespace AscendC {

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
// block and sets a flag for the vector pipe, which doubles up from there with barriers between. So
// a buffer that the vector pipe used before needs V_S first. For some counts there is a barrier
// behind the last step as well; that is not promised, and not here.
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
    if (at > kBlock) {
      PipeBarrier<PIPE_V>();
    }
    extend(at, kBlock, std::min(kBlock, first - at));
  }
  for (uint32_t at = kRepeat; at < count; at += kRepeat) {
    PipeBarrier<PIPE_V>();
    extend(at, kRepeat, std::min(kRepeat, count - at));
  }
}

}  // namespace AscendC

#endif  // MKV_ASCENDC_HOST_VECTOR_MORE_H_
