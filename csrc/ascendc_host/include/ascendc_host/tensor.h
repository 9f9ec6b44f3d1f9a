// SPDX-License-Identifier: Apache-2.0
// LocalTensor and GlobalTensor, with the accesses of the scalar unit.
#ifndef MKV_ASCENDC_HOST_TENSOR_H_
#define MKV_ASCENDC_HOST_TENSOR_H_

#include <cstring>
#include <type_traits>

#include "instruction.h"

namespace AscendC {

using ascendc_host::Where;

// A view of part of a buffer of the unified buffer. Sizes and offsets count elements of T.
template <typename T>
class LocalTensor {
 public:
  using PrimType = T;

  LocalTensor() = default;

  T GetValue(const uint32_t index, Where where = Where::Here()) const {
    ascendc_host::Instruction instruction(PIPE_S, "LocalTensor::GetValue", where);
    const auto place = Element(index);
    instruction.Read(place, sizeof(T));
    instruction.NeedDefined(place, sizeof(T), "reads");
    T value;
    std::memcpy(&value, instruction.core().ub(place.at), sizeof(T));
    return value;
  }

  template <typename S>
  void SetValue(const uint32_t index, const S value, Where where = Where::Here()) const {
    ascendc_host::Instruction instruction(PIPE_S, "LocalTensor::SetValue", where);
    const auto place = Element(index);
    instruction.Write(place, sizeof(T));
    instruction.SetUndefined(place, sizeof(T), false);
    const T converted = static_cast<T>(value);
    std::memcpy(instruction.core().ub(place.at), &converted, sizeof(T));
  }

  LocalTensor operator[](const uint32_t offset) const {
    LocalTensor moved = *this;
    moved.place_ = Element(offset);
    moved.size_ = offset < size_ ? size_ - offset : 0;
    return moved;
  }

  template <typename U>
  LocalTensor<U> ReinterpretCast() const {
    return LocalTensor<U>(place_, size_ * sizeof(T) / sizeof(U));
  }

  uint32_t GetSize() const {
    return size_;
  }
  void SetSize(const uint32_t size) {
    size_ = size;
  }

  // For ascendc_host itself; CANN has no such members.
  LocalTensor(const ascendc_host::UbPlace& place, size_t size)
      : place_(place), size_(static_cast<uint32_t>(size)) {}
  const ascendc_host::UbPlace& place() const {
    return place_;
  }

 private:
  ascendc_host::UbPlace Element(uint32_t index) const {
    auto place = place_;
    // An index past 4 GiB must not wrap into the buffer again.
    const uint64_t at = place_.at + static_cast<uint64_t>(index) * sizeof(T);
    place.at = at > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(at);
    return place;
  }

  ascendc_host::UbPlace place_;
  uint32_t size_ = 0;
};

// A view of global memory. Offsets count elements of T and are 64-bit.
template <typename T>
class GlobalTensor {
 public:
  using PrimType = T;

  GlobalTensor() = default;

  void SetGlobalBuffer(__gm__ T* buffer, uint64_t bufferSize) {
    SetGlobalBuffer(buffer);
    place_.limit = place_.at + bufferSize * sizeof(T);
    size_ = bufferSize;
  }
  void SetGlobalBuffer(__gm__ T* buffer) {
    place_ = ascendc_host::GmPlace();
    place_.at = reinterpret_cast<uint64_t>(buffer);
    place_.base = place_.at;
  }

  const __gm__ T* GetPhyAddr() const {
    return reinterpret_cast<const T*>(place_.at);
  }
  __gm__ T* GetPhyAddr(const uint64_t offset) const {
    return reinterpret_cast<T*>(Element(offset).at);
  }
  uint64_t GetSize() const {
    return size_;
  }

  GlobalTensor operator[](const uint64_t offset) const {
    GlobalTensor moved = *this;
    moved.place_ = Element(offset);
    return moved;
  }

  // By the scalar unit, through its data cache of 64-byte lines, which follows no copies.
  T GetValue(const uint64_t offset, Where where = Where::Here()) const {
    ascendc_host::Instruction instruction(PIPE_S, "GlobalTensor::GetValue", where);
    const auto place = Element(offset);
    instruction.Read(place, sizeof(T));
    instruction.NeedRegion(place, sizeof(T), false);
    ascendc_host::ForEachLine(
        place.at, sizeof(T), [&](uint64_t line) { ReadLine(instruction, line, place.at); });
    T value;
    std::memcpy(&value, reinterpret_cast<const void*>(place.at), sizeof(T));
    return value;
  }

  void SetValue(const uint64_t offset, T value, Where where = Where::Here()) {
    ascendc_host::Instruction instruction(PIPE_S, "GlobalTensor::SetValue", where);
    const auto place = Element(offset);
    instruction.Write(place, sizeof(T));
    ascendc_host::ForEachLine(place.at, sizeof(T), [&](uint64_t line) {
      NeedOwnLine(instruction, line);
      WriteLine(instruction, line, place.at, where);
    });
    std::memcpy(reinterpret_cast<void*>(place.at), &value, sizeof(T));
  }

  const ascendc_host::GmPlace& place() const {
    return place_;
  }

 private:
  ascendc_host::GmPlace Element(uint64_t offset) const {
    auto place = place_;
    place.at += offset * sizeof(T);
    return place;
  }

  void ReadLine(ascendc_host::Instruction& instruction, uint64_t line, uint64_t at) const {
    auto& core = instruction.core();
    auto& state = core.cache().At(line);
    const uint64_t read = ascendc_host::BytesOfLine(line, at, sizeof(T));
    if ((state.copied & read) != 0) {
      instruction.Add(
          "cache",
          "reads what a copy wrote at " + ascendc_host::Text(state.copied_where) +
              "; the data cache may hold what was there before. DataCacheCleanAndInvalid is "
              "missing");
    }
    if (!core.cache().Fresh(line, read)) {
      instruction.Add(
          "cache",
          "an earlier kernel may have left these bytes in the data cache; DataCacheCleanAndInvalid "
          "before the first read is missing");
    }
    if (!state.loaded) {
      state.loaded = true;
      ++core.counters().cache_lines;
      core.counters().read_cost += ascendc_host::kCacheLineBytes;
    }
  }

  void WriteLine(
      ascendc_host::Instruction& instruction, uint64_t line, uint64_t at, Where where) const {
    auto& core = instruction.core();
    auto& state = core.cache().At(line);
    const uint64_t written = ascendc_host::BytesOfLine(line, at, sizeof(T));
    if ((state.copied & ~written) != 0) {
      instruction.Add(
          "cache",
          "writes to a 64-byte line that a copy wrote to at " +
              ascendc_host::Text(state.copied_where) +
              "; what the data cache has of it may go back over that. DataCacheCleanAndInvalid is "
              "missing");
    }
    if (!core.cache().Fresh(line, ~uint64_t{0})) {
      instruction.Add(
          "cache",
          "writes to a 64-byte line that an earlier kernel may have left in the data cache; it "
          "goes "
          "back whole. DataCacheCleanAndInvalid before it is missing");
    }
    state.dirty |= written;
    state.dirty_where = where;
    core.device().AddScalarWriter(line, core.index());
  }

  // A line that is written back takes the bytes of other cores in it along.
  void NeedOwnLine(ascendc_host::Instruction& instruction, uint64_t line) const {
    using ascendc_host::kCacheLineBytes;
    auto& core = instruction.core();
    core.device().shadow().ForEach(
        line * kCacheLineBytes, (line + 1) * kCacheLineBytes,
        [&](const ascendc_host::Touched& touched, uint64_t, uint64_t) {
          if (touched.write_core >= 0 && touched.write_core != core.index()) {
            instruction.Add(
                "core_race", "writes a 64-byte cache line that core " +
                                 std::to_string(touched.write_core) +
                                 " writes to as well; one of them is lost");
          }
        });
  }

  ascendc_host::GmPlace place_;
  uint64_t size_ = 0;
};

template <typename T, CacheLine entireType, DcciDst dcciDst>
void DataCacheCleanAndInvalid(const GlobalTensor<T>& dst, Where where = Where::Here()) {
  static_assert(
      dcciDst == DcciDst::CACHELINE_OUT || dcciDst == DcciDst::CACHELINE_ALL,
      "only lines of global memory are modelled: DcciDst::CACHELINE_OUT");
  ascendc_host::Instruction instruction(PIPE_S, "DataCacheCleanAndInvalid", where);
  auto& cache = instruction.core().cache();
  if (entireType == CacheLine::ENTIRE_DATA_CACHE) {
    cache.InvalidateAll();
  } else {
    cache.Invalidate(dst.place().at);
  }
}

}  // namespace AscendC

#endif  // MKV_ASCENDC_HOST_TENSOR_H_
